#include "changed_model.hpp"

#include "support/standard.hpp"

namespace differential {

namespace {

constexpr char const* change_names[] = {"ties",
                                        "unties",
                                        "grows",
                                        "thaws",
                                        "renames",
                                        "reshapes",
                                        "narrows",
                                        "stacks",
                                        "removes",
                                        "adds",
                                        "reorders",
                                        "misnames",
                                        "other-rule",
                                        "retypes"};

/// Of layer i of a stack.
std::string layer_name(std::string const& whole, std::size_t i) {
  return whole + "[" + std::to_string(i) + "]";
}
std::size_t elements(std::vector<std::size_t> const& shape) {
  std::size_t count = 1;
  for (std::size_t const extent : shape) count *= extent;
  return count;
}

/// The case that is saved: fewer tensors than others have, some of them twice, and a stack.
void add_twins(Case& test) {
  Dice dice(test.seed, 'b');
  test.tensors.resize(std::min(test.tensors.size(), 1 + dice.below(6)));
  std::size_t const twins = dice.pick<std::size_t>({0, 50, 100});
  std::size_t const frozen = dice.pick<std::size_t>({0, 30, 60});
  for (std::size_t t = 0, count = test.tensors.size(); t < count; ++t) {
    bool const has_twin = dice.chance(twins);
    int const kind = dice.to(3);
    TensorCase& first = test.tensors[t];
    if (dice.chance(frozen) && !test.tied(t)) first.frozen = true;
    if (!has_twin || first.tied) continue;
    // What does not move keeps the values of the other. It has other states; or the same, and where
    // it rests another count.
    if (kind > 1 && !test.tied(t)) first.learning_rate = 0.f;
    if (kind > 2 && !test.tied(t)) {
      first.weight_decay = first.magnitude = 0.f;
      test.features = (test.features | absences) & ~unsigned{directly};
    }
    TensorCase twin = first;
    twin.name = name(first) + "b";
    if (kind == 2) twin.magnitude *= 2.f;
    test.tensors.push_back(twin);
  }
  if (!dice.chance(50)) return;
  std::size_t const layers = 1 + dice.below(3);
  TensorCase layer{.id = 100, .shape = {2, 1 + dice.below(300)}, .count = 0, .unit = dice.to(2)};
  layer.count = elements(layer.shape);
  layer.frozen = dice.chance(30);
  layer.wide = dice.chance(40);
  layer.bytes = dice.chance(50);
  if (dice.chance(50)) {
    for (std::size_t i = 0; i < layers; ++i) {
      layer.name = layer_name("s", i);
      test.tensors.push_back(layer);
      ++layer.id;
      layer.unit += dice.to(1);
      if (dice.chance(30)) layer.wide = !layer.wide;
      if (dice.chance(30)) layer.bytes = !layer.bytes;
    }
  } else {
    layer.name = "s";
    layer.shape.insert(layer.shape.begin(), layers);
    layer.count *= layers;
    test.tensors.push_back(layer);
  }
}

/// Changes the model of the case before to that of the case after.
class Changer {
 public:
  explicit Changer(ChangedModel& test) : test_(test) {
    for (std::size_t t = 0; t < test.before.tensors.size(); ++t) {
      TensorCase const& tensor = test.before.tensors[t];
      now_.push_back({tensor, name(tensor), static_cast<int>(test.before.storage(t))});
      now_.back().about.name = now_.back().there;
    }
    test.names.clear();
  }

  void run() {
    if (test_.changes & stacks) restack();
    if (test_.changes & removes) {
      for (std::size_t i = now_.size(); i-- > 0;) {
        if (now_.size() == 1 || !dice(removes, i).chance(30)) continue;
        now_.erase(now_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (test_.changes & unties) untie();
    for_some(thaws, [](TensorCase& tensor, Dice&) { tensor.frozen = !tensor.frozen; });
    for_some(grows, [](TensorCase& tensor, Dice& dice) {
      if (!tensor.shape.empty()) tensor.shape[0] += 1 + dice.below(3);
    });
    for_some(reshapes, reshape);
    for_some(retypes, [](TensorCase& tensor, Dice& dice) {
      bool& flag = tensor.frozen && dice.chance(60) ? tensor.bytes : tensor.wide;
      flag = !flag;
    });
    if (test_.changes & ties) tie();
    if (test_.changes & adds) add();
    if (test_.changes & renames) rename();
    if (test_.changes & misnames) misname();
    Dice order = dice(reorders, 0);
    if (test_.changes & reorders) order.shuffle(now_);
    finish(order);
  }

 private:
  struct Tensor {
    TensorCase about;
    std::string there;  ///< its name in the checkpoint, or empty
    int memory;         ///< the same of all that are tied
  };

  /// A change's own dice for a tensor.
  [[nodiscard]] Dice dice(ModelChange which, std::size_t i) const {
    int const id = i < now_.size() ? now_[i].about.id : 0;
    return Dice(test_.seed, 'c', which, id, i);
  }
  /// Changes some, each with those that are tied to it.
  void for_some(ModelChange which, void (*change)(TensorCase&, Dice&)) {
    if ((test_.changes & which) == 0) return;
    std::set<int> seen;
    for (std::size_t i = 0; i < now_.size(); ++i) {
      Dice own = dice(which, i);
      if (!seen.insert(now_[i].memory).second || !own.chance(40)) continue;
      change(now_[i].about, own);
      now_[i].about.count = elements(now_[i].about.shape);
      for (Tensor& other : now_) {
        if (other.memory == now_[i].memory) share(other.about, now_[i].about);
      }
    }
  }
  /// Gives a tensor what those that are tied have alike.
  static void share(TensorCase& tensor, TensorCase const& first) {
    tensor.shape = first.shape;
    tensor.count = first.count;
    tensor.learning_rate = first.learning_rate;
    tensor.weight_decay = first.weight_decay;
    tensor.frozen = first.frozen;
    tensor.whole = first.whole;
    tensor.wide = first.wide;
    tensor.bytes = first.bytes;
    tensor.group = first.group;
  }
  static void reshape(TensorCase& tensor, Dice& dice) {
    auto& shape = tensor.shape;
    if (shape.size() > 1 && shape[0] != shape[1] && dice.chance(50)) {
      std::swap(shape[0], shape[1]);
    } else if (shape.size() > 1 && dice.chance(50)) {
      shape = {tensor.count};
    } else {
      shape.insert(shape.begin(), 1);
    }
  }

  void restack() {
    Dice own(test_.seed, 'c', stacks);
    std::string const name = own.chance(30) ? "x" : "s";
    std::size_t const other = own.pick<std::size_t>({0, 0, 0, 1, 2});
    std::vector<Tensor> layers;
    for (Tensor const& tensor : now_) {
      if (tensor.about.name.starts_with("s")) layers.push_back(tensor);
    }
    if (layers.empty()) return;
    std::erase_if(now_, [](Tensor const& tensor) { return tensor.about.name.starts_with("s"); });
    if (name != "s") test_.names["s"] = name;
    Tensor one = layers.front();
    one.there.clear();
    auto& shape = one.about.shape;
    if (one.about.name != "s") {
      // Perhaps a layer that was not saved, or without the last one.
      std::size_t const count = layers.size() + (other == 1 ? 1 : 0) - (other == 2 ? 1 : 0);
      shape.insert(shape.begin(), count);
      one.about.name = name;
      one.about.count = elements(shape);
      now_.push_back(one);
      return;
    }
    std::size_t const count = shape.front() + (other == 1 ? 1 : 0);
    shape.erase(shape.begin());
    one.about.count = elements(shape);
    for (std::size_t i = 0; i < count; ++i) {
      one.about.id = 200 + static_cast<int>(i);
      one.about.name = layer_name(name, i);
      one.memory = one.about.id;
      if (i > 0 || other != 2) now_.push_back(one);
    }
  }
  void untie() {
    std::set<int> seen;
    for (std::size_t i = 0; i < now_.size(); ++i) {
      bool const first = seen.insert(now_[i].memory).second;
      if (!first && dice(unties, i).chance(70)) now_[i].memory = 300 + static_cast<int>(i);
    }
  }
  void tie() {
    for (std::size_t i = 1; i < now_.size(); ++i) {
      Dice own = dice(ties, i);
      if (!own.chance(70)) continue;
      std::vector<std::size_t> others;
      bool twin = false;
      for (std::size_t k = 0; k < i; ++k) {
        bool const fits = now_[k].about.shape == now_[i].about.shape &&
                          now_[k].about.frozen == now_[i].about.frozen &&
                          now_[k].about.wide == now_[i].about.wide &&
                          now_[k].about.bytes == now_[i].about.bytes &&
                          now_[k].memory != now_[i].memory;
        bool const is_twin = now_[k].about.id == now_[i].about.id;
        if (!fits || (twin && !is_twin)) continue;
        if (is_twin && !std::exchange(twin, true)) others.clear();
        others.push_back(k);
      }
      if (others.empty()) continue;
      int const memory = now_[others[own.below(others.size())]].memory;
      int const old = now_[i].memory;
      for (Tensor& tensor : now_) {
        if (tensor.memory == old) tensor.memory = memory;
      }
    }
  }
  void add() {
    Dice own(test_.seed, 'c', adds);
    int const count = 1 + own.to(1);
    for (int i = 0; i < count; ++i) {
      Tensor added{{.id = 400 + i, .shape = {1 + own.below(600)}, .count = 0, .unit = own.to(3)},
                   "",
                   400 + i};
      std::size_t const like = own.below(now_.size() + 1);
      bool const tied = own.chance(40);
      if (like < now_.size()) {
        share(added.about, now_[like].about);
        if (tied) added.memory = now_[like].memory;
      }
      added.about.count = elements(added.about.shape);
      added.about.name = "n" + std::to_string(i);
      // A name that was free, or has become so; or that of a layer of another one.
      auto const& old = test_.before.tensors;
      std::size_t const which = own.below(old.size() + 1);
      std::string const known = which < old.size() ? name(old[which]) : "s";
      std::string const wanted = own.chance(50) ? known : layer_name(known, own.below(2));
      if (own.chance(40) && !has(wanted)) added.about.name = wanted;
      now_.push_back(added);
    }
  }
  [[nodiscard]] bool has(std::string const& name) const {
    return std::any_of(
        now_.begin(), now_.end(), [&](Tensor const& tensor) { return tensor.about.name == name; });
  }
  void rename() {
    for (std::size_t i = 0; i < now_.size(); ++i) {
      Dice own = dice(renames, i);
      std::string& name = now_[i].about.name;
      std::size_t const other = own.below(now_.size());
      if (now_[i].there != name || !own.chance(40)) continue;
      if (own.chance(30) && other != i && now_[other].there == now_[other].about.name) {
        std::swap(name, now_[other].about.name);
        test_.names[now_[other].there] = now_[other].about.name;
      } else if (std::string const made = "r" + std::to_string(i); !has(made)) {
        name = made;
      }
      if (own.chance(80)) test_.names[now_[i].there] = name;
    }
  }
  void misname() {
    Dice own(test_.seed, 'c', misnames);
    auto const any = [&](bool there) {
      auto const& old = test_.before.tensors;
      if (there && !old.empty()) return differential::name(old[own.below(old.size())]);
      return now_.empty() ? std::string("nobody") : now_[own.below(now_.size())].about.name;
    };
    std::string const saved = any(true);
    std::string const here = any(false);
    switch (own.below(5)) {
      case 0: test_.names[saved] = here; break;
      case 1: test_.names[saved] = "nowhere"; break;
      // Names that the checkpoint does not have, as older ones may.
      case 2: test_.names["older"] = here; break;
      case 3: test_.names["zzz"] = here; break;
      default: test_.names["older"] = "nowhere";
    }
  }

  /// Those that are tied lie where the first of them lies.
  void finish(Dice& dice) {
    std::map<int, std::size_t> first;
    auto& tensors = test_.after.tensors;
    tensors.clear();
    for (Tensor const& each : now_) {
      TensorCase tensor = each.about;
      tensor.tied.reset();
      auto const [at, is_first] = first.emplace(each.memory, tensors.size());
      if (!is_first) {
        share(tensor, tensors[at->second]);
        tensor.tied = at->second;
      }
      if (test_.changes & reorders) tensor.unit = dice.to(3);
      tensors.push_back(std::move(tensor));
    }
  }

  ChangedModel& test_;
  std::vector<Tensor> now_;
};

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// What a checkpoint has of a tensor, or of those that become one.
struct Saved {
  std::vector<std::string> from{};  ///< tensors of the checkpoint
  std::vector<std::size_t> shape{};
  bool frozen = false;
  bool bytes = false;     ///< no numbers
  bool wide = false;      ///< parameters of 32 bits beside those of 16
  bool left_out = false;  ///< its values
  std::vector<float> values{};
  std::vector<std::vector<float>> states{};
  long count = 0;
  std::string problem{};  ///< why they do not become one
};

/// Finds what is loaded, over whole tensors.
class Judge {
 public:
  Judge(ChangedModel const& test, ExpectedStep const& saved) : test_(test) {
    Case const& before = test.before;
    for (std::size_t t = 0; t < before.tensors.size(); ++t) {
      std::size_t const s = before.storage(t);
      Saved& own = saved_[name(before.tensors[t])];
      own.from = {name(before.tensors[t])};
      own.shape = before.tensors[t].shape;
      own.frozen = before.tensors[t].frozen;
      own.bytes = before.bytes(t);
      own.wide = before.wide(t);
      own.left_out = own.frozen && !test.saves_frozen;
      own.values = own.frozen ? saved.after.parameters[s] : saved.after.masters[s];
      for (auto const& array : saved.after.states) {
        if (!own.frozen) own.states.push_back(array[s]);
      }
      own.count = saved.steps[s];
    }
    for (TensorCase const& tensor : test.after.tensors) claimed_.insert(there(name(tensor)));
  }

  Verdict judge(ExpectedStep const& saved, std::vector<ExpectedStep> const& own) {
    if (!names_make_sense()) return {.refused = "invalid argument"};
    Case const& after = test_.after;
    Verdict verdict;
    std::vector<std::optional<Saved>> found;
    for (TensorCase const& tensor : after.tensors) found.push_back(find(tensor));
    if (std::string const other = of_another_rule(found); !other.empty()) {
      return {.refused = "data", .said = {other}};
    }
    Loaded& loaded = verdict.loaded;
    loaded.before = test_.at;
    loaded.counts = !test_.parameters_only;
    loaded.step = saved.report.step;
    loaded.tensors.resize(after.tensors.size());
    if (test_.before.policies.number == Number::fp16) {
      loaded.loss_scale = saved.next_loss_scale;
      loaded.streak = saved.streak;
    }
    if (after.policies.number != Number::fp16) loaded.loss_scale.reset();
    verdict.taken.resize(after.tensors.size());
    for (std::size_t root = 0; root < after.tensors.size(); ++root) {
      if (after.storage(root) == root) judge_memory(root, found, own, verdict);
    }
    for (auto const& [name, each] : saved_) {
      auto const used = used_.find(name);
      if (each.left_out || (each.frozen && !test_.loads_frozen)) continue;
      if (used == used_.end()) verdict.unexpected.insert(name);
      for (std::size_t i = 0; used != used_.end() && i < used->second.size(); ++i) {
        if (!used->second[i]) verdict.unexpected.insert(layer_name(name, i));
      }
    }
    find_fates(found, verdict);
    if (!test_.strict) return verdict;
    for (auto const* const names : {&verdict.missing, &verdict.unexpected, &verdict.unfit}) {
      for (std::string const& each : *names) verdict.said.insert("'" + each + "'");
    }
    if (!verdict.said.empty()) verdict.refused = "data";
    return verdict;
  }

 private:
  /// Does the checkpoint have a tensor or a stack of that name?
  [[nodiscard]] bool has(std::string const& name) const {
    return saved_.contains(name) || saved_.contains(layer_name(name, 0));
  }
  /// What a tensor here, or the stack that it is of, is called in the checkpoint: of several names
  /// one that the checkpoint has.
  [[nodiscard]] std::string there(std::string const& here) const {
    std::string result;
    for (auto const& [saved, own] : test_.names) {
      if (own == here && (result.empty() || has(saved))) result = saved;
    }
    return result.empty() || (!has(result) && has(here)) ? here : result;
  }
  /// A tensor of the checkpoint, if it has that name here.
  [[nodiscard]] Saved const* saved_as(std::string const& name, std::string const& here) const {
    auto const renamed = test_.names.find(name);
    if (renamed != test_.names.end() && renamed->second != here) return nullptr;
    auto const found = saved_.find(name);
    return found == saved_.end() ? nullptr : &found->second;
  }

  [[nodiscard]] bool names_make_sense() const {
    std::set<std::string> called;
    for (auto const& [name, each] : saved_) {
      auto const renamed = test_.names.find(name);
      if (!called.insert(renamed == test_.names.end() ? name : renamed->second).second)
        return false;
    }
    if (!test_.strict) return true;
    return std::all_of(test_.names.begin(), test_.names.end(), [&](auto const& renamed) {
      return std::ranges::any_of(test_.after.tensors, [&](TensorCase const& tensor) {
        std::string const here = name(tensor);
        return here == renamed.second || stack_of(here) == renamed.second;
      });
    });
  }
  /// The stack that a tensor of such a name is a layer of; or empty.
  static std::string stack_of(std::string const& name) {
    std::size_t const open = name.rfind('[');
    return open == std::string::npos ? "" : name.substr(0, open);
  }

  std::optional<Saved> find(TensorCase const& tensor) {
    std::string const here = name(tensor);
    if (Saved const* const own = saved_as(there(here), here)) {
      used_[own->from[0]];
      return *own;
    }
    if (std::string const stack = stack_of(here); !stack.empty()) {
      return layer(stack, std::stoul(here.substr(stack.size() + 1)));
    }
    if (tensor.shape.empty() || tensor.shape[0] == 0) return std::nullopt;
    std::vector<Saved const*> layers;
    for (std::size_t i = 0; i < tensor.shape[0]; ++i) {
      std::string const name = layer_name(there(here), i);
      layers.push_back(claimed_.contains(name) ? nullptr : saved_as(name, layer_name(here, i)));
      if (layers.back() == nullptr) return std::nullopt;
    }
    return whole(layers);
  }
  std::optional<Saved> layer(std::string const& stack, std::size_t i) {
    std::string const name = there(stack);
    Saved const* const all = claimed_.contains(name) ? nullptr : saved_as(name, stack);
    if (all == nullptr || all->shape.empty() || i >= all->shape[0]) return std::nullopt;
    auto& used = used_[name];
    used.resize(all->shape[0]);
    used[i] = true;
    Saved one = *all;
    one.shape.erase(one.shape.begin());
    auto const cut = [&](std::vector<float>& array) {
      auto const count = static_cast<std::ptrdiff_t>(elements(one.shape));
      auto const begin = array.begin() + static_cast<std::ptrdiff_t>(i) * count;
      array = std::vector<float>(begin, begin + count);
    };
    cut(one.values);
    for (auto& array : one.states) cut(array);
    return one;
  }
  Saved whole(std::vector<Saved const*> const& layers) {
    Saved all = *layers[0];
    for (Saved const* const each : layers) {
      used_[each->from[0]];
      if (each == layers[0]) continue;
      all.from.push_back(each->from[0]);
      // Masters are of one type, whatever their parameters are.
      bool const one_type = !all.frozen || (each->bytes == all.bytes && each->wide == all.wide);
      bool const alike = each->shape == all.shape && each->frozen == all.frozen && one_type;
      if (!alike || (each->count != all.count && !test_.parameters_only)) {
        all.problem = "are not alike";
        continue;
      }
      auto const append = [](std::vector<float>& to, std::vector<float> const& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(all.values, each->values);
      for (std::size_t k = 0; k < all.states.size(); ++k) append(all.states[k], each->states[k]);
    }
    all.shape.insert(all.shape.begin(), layers.size());
    return all;
  }

  /// The first tensor whose states would mean something else; or empty.
  [[nodiscard]] std::string of_another_rule(std::vector<std::optional<Saved>> const& found) const {
    bool const same = test_.before.policies.rule == test_.after.policies.rule;
    for (std::size_t t = 0; t < found.size() && !same && !test_.parameters_only; ++t) {
      if (found[t] && !found[t]->frozen && test_.after.trained(t)) {
        return "states of '" + name(test_.after.tensors[t]) + "'";
      }
    }
    return "";
  }

  /// What is loaded of the tensors that lie where one lies.
  void judge_memory(std::size_t root,
                    std::vector<std::optional<Saved>> const& found,
                    std::vector<ExpectedStep> const& own,
                    Verdict& verdict) {
    Case const& after = test_.after;
    Saved const* first = nullptr;
    std::size_t leader = root;
    bool const stays = !after.trained(root) && !test_.loads_frozen;
    bool any = stays;
    bool left_out = stays;
    bool same_values = true;
    bool same_states = true;
    for (std::size_t t = root; t < found.size(); ++t) {
      if (stays || after.storage(t) != root || !found[t]) continue;
      any = true;
      bool const without = found[t]->left_out;
      left_out = left_out || (without && !after.trained(root));
      std::string const here = name(after.tensors[t]);
      Saved const& saved = *found[t];
      bool const has_values = !saved.values.empty() && !without;
      bool const other_kind = saved.bytes != after.bytes(t) && has_values;
      if (!saved.problem.empty() || saved.shape != after.tensors[t].shape || other_kind) {
        verdict.unfit.insert(here);
        continue;
      }
      if (without && after.trained(root)) verdict.unfit.insert(here);
      if (without) continue;
      bool const has_states = !saved.values.empty() && !saved.states.empty();
      bool const wants = after.trained(root) && saved.frozen && states_here() > 0;
      bool const misfits = after.trained(root) ? wants && !saved.values.empty() : has_states;
      if (misfits && !test_.parameters_only) verdict.unfit.insert(here);
      if (first == nullptr) {
        first = &saved;
        leader = t;
        continue;
      }
      bool const values = same_bits(held(root, saved.values), held(root, first->values));
      bool states = saved.count == first->count && saved.frozen == first->frozen;
      for (std::size_t k = 0; states && after.trained(root) && k < saved.states.size(); ++k) {
        states = same_bits(saved.states[k], first->states[k]);
      }
      states = states || test_.parameters_only;
      if (!values || !states) verdict.unfit.insert({here, name(after.tensors[leader])});
      same_values = same_values && values;
      same_states = same_states && states;
    }
    if (left_out && first == nullptr) verdict.left_out.insert(name(after.tensors[root]));
    LoadedTensor& loaded = verdict.loaded.tensors[root];
    bool const takes = first != nullptr && same_values;
    bool const takes_states =
        takes && same_states && !first->frozen && after.trained(root) && !test_.parameters_only;
    if (takes) loaded.values = first->values;
    if (takes_states) loaded.states = first->states;
    if (takes_states) loaded.count = first->count;
    long const own_count =
        test_.at == 0 ? 0 : own[static_cast<std::size_t>(test_.at - 1)].steps[root];
    for (std::size_t t = root; t < found.size(); ++t) {
      if (after.storage(t) != root) continue;
      verdict.taken[t] = {takes, takes_states, test_.parameters_only ? own_count : loaded.count};
      if (!after.trained(t)) verdict.taken[t].count = 0;
      if (!any) verdict.missing.insert(name(after.tensors[t]));
    }
    // Nobody reads the count of what is frozen; it goes on with the run, or as it was saved.
    if (!after.trained(root)) {
      loaded.count = found[root] ? found[root]->count : verdict.loaded.step;
    }
  }
  /// As a tensor holds them.
  [[nodiscard]] std::vector<float> held(std::size_t t, std::vector<float> values) const {
    if (test_.after.trained(t)) return values;
    for (float& value : values) value = rounded(test_.after.number(t), value);
    return values;
  }
  [[nodiscard]] std::size_t states_here() const {
    constexpr std::size_t counts[] = {0, 1, 1, 2, 2, 1, 3, 2};
    return counts[static_cast<std::size_t>(test_.after.policies.rule)];
  }

  /// Where everything that was saved may go.
  void find_fates(std::vector<std::optional<Saved>> const& found, Verdict& verdict) const {
    for (std::size_t t = 0; t < test_.before.tensors.size(); ++t) {
      if (test_.before.storage(t) != t) continue;
      bool const meant = test_.saves_frozen && test_.loads_frozen;
      if (!meant && !test_.before.trained(t)) continue;
      Fate values{.array = "values of " + name(test_.before.tensors[t])};
      for (std::size_t other = 0; other < test_.before.tensors.size(); ++other) {
        if (test_.before.storage(other) != t) continue;
        std::string const there = name(test_.before.tensors[other]);
        values.names.insert(there);
        for (std::size_t here = 0; here < found.size(); ++here) {
          if (!found[here] || std::ranges::count(found[here]->from, there) == 0) continue;
          values.takers.push_back(here);
          // What is refused of one of those that are tied here is refused of all.
          for (std::size_t tied = 0; tied < found.size(); ++tied) {
            if (test_.after.storage(tied) == test_.after.storage(here))
              values.names.insert(name(test_.after.tensors[tied]));
          }
        }
      }
      verdict.fates.push_back(values);
      Saved const& saved = saved_.at(name(test_.before.tensors[t]));
      if (saved.states.empty() || saved.values.empty() || test_.parameters_only) continue;
      Fate states = values;
      states.array = "states of " + name(test_.before.tensors[t]);
      states.states = true;
      verdict.fates.push_back(states);
    }
  }

  ChangedModel const& test_;
  std::map<std::string, Saved> saved_{};
  std::set<std::string> claimed_{};                  ///< names there of tensors here
  std::map<std::string, std::vector<bool>> used_{};  ///< by name there; and which layers
};

}  // namespace

ChangedModel draw_changed(std::uint64_t seed, std::span<Policies const> available, int most_ranks) {
  Dice dice(seed, 'd');
  Policies const& before = available[seed % available.size()];
  unsigned changes = 0;
  int const count = dice.pick({0, 1, 1, 2, 2, 3, 5});
  for (int i = 0; i < count; ++i) changes |= 1u << dice.below(12);
  if (dice.chance(10)) changes |= other_rule;
  if (dice.chance(15)) changes |= ties;
  if (dice.chance(20)) changes |= retypes;
  std::vector<Policies> choices;
  bool const same_types = dice.chance(60);
  for (Policies const& each : available) {
    if (same_types && each.by_tensor != before.by_tensor) continue;
    bool const same_number = each.number == before.number;
    bool const same_rule = each.rule == before.rule;
    bool const fits = same_number != ((changes & narrows) != 0);
    if (fits && same_rule != ((changes & other_rule) != 0)) choices.push_back(each);
  }
  Policies const& after = choices.empty() ? before : choices[dice.below(choices.size())];
  ChangedModel test{.seed = seed,
                    .changes = changes,
                    .before = draw(seed, before, most_ranks),
                    .after = draw(~seed, after, most_ranks),
                    .at = dice.to(1),
                    .strict = dice.chance(50),
                    .parameters_only = dice.chance(changes & other_rule ? 50 : 10),
                    .verify_first = dice.chance(20),
                    .finds = dice.chance(30),
                    .saves_frozen = !dice.chance(25),
                    .loads_frozen = !dice.chance(25)};
  for (Case* const each : {&test.before, &test.after}) each->features &= ~unsigned{faults};
  if (dice.chance(50)) test.before.features |= kinds;
  test.after.features = (test.after.features & ~unsigned{kinds}) | (test.before.features & kinds);
  add_twins(test.before);
  test.after.steps = test.at + 1 + dice.to(2);
  Changer(test).run();
  return test;
}

std::vector<std::string> names_of(unsigned changes) {
  std::vector<std::string> names;
  for (unsigned i = 0; i < std::size(change_names); ++i) {
    if ((changes >> i & 1u) != 0) names.emplace_back(change_names[i]);
  }
  return names;
}

std::string describe(ChangedModel const& test) {
  std::ostringstream text;
  text << "before: " << describe(test.before) << "after: " << describe(test.after) << "changes:";
  for (std::string const& each : names_of(test.changes)) text << ' ' << each;
  text << "\nload before step " << test.at << (test.strict ? ", strict" : "")
       << (test.parameters_only ? ", parameters_only" : "")
       << (test.verify_first ? ", verify_first" : "") << (test.finds ? ", load()" : ", resume()")
       << (test.saves_frozen ? "" : ", saved without frozen")
       << (test.loads_frozen ? "" : ", loaded without frozen");
  for (auto const& [there, here] : test.names) text << ", " << there << " -> " << here;
  text << '\n';
  return text.str();
}

std::vector<ChangedModel> simpler(ChangedModel const& test) {
  std::vector<ChangedModel> result;
  auto const add = [&](auto const& change) {
    change(result.emplace_back(test));
    Changer(result.back()).run();
  };
  for (unsigned bit = 1; bit < all_model_changes; bit <<= 1) {
    if ((test.changes & bit & ~unsigned{narrows | other_rule}) != 0)
      add([&](ChangedModel& c) { c.changes &= ~bit; });
  }
  for (Case const& before : simpler(test.before)) add([&](ChangedModel& c) { c.before = before; });
  Case fixed = test.after;
  fixed.tensors.resize(std::min(fixed.tensors.size(), std::size_t{1}));
  for (Case const& after : simpler(fixed)) {
    if (after.steps > test.at) add([&](ChangedModel& c) { c.after = after; });
  }
  if (test.verify_first) add([](ChangedModel& c) { c.verify_first = false; });
  if (!test.saves_frozen) add([](ChangedModel& c) { c.saves_frozen = true; });
  if (!test.loads_frozen) add([](ChangedModel& c) { c.loads_frozen = true; });
  return result;
}

Verdict judge(ChangedModel const& test,
              ExpectedStep const& saved,
              std::vector<ExpectedStep> const& own) {
  return Judge(test, saved).judge(saved, own);
}

}  // namespace differential
