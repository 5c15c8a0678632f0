#include "case.hpp"

#include "support/standard.hpp"

namespace differential {

namespace {

/// Keys that keep dice apart which are thrown for different questions.
enum Question : std::uint64_t {
  of_case,
  of_tensors,
  of_step,
  of_forward,
  of_pass,
  of_gradient,
  of_value,
  of_root,
  of_group,
  of_change,
  of_whole,
  of_kinds
};

constexpr char const* stage_names[] = {"replicated", "pos", "pos+g", "pos+g+p"};
constexpr char const* number_names[] = {
    "fp32", "bf16", "fp16", "bf16_wide", "bf16_away", "bf16_rest"};
constexpr char const* rule_names[] = {
    "plain-sgd", "sgd", "adagrad", "adam", "adamw", "lion", "rms-prop", "lamb"};
constexpr char const* accumulation_names[] = {"none", "full", "shard"};
constexpr char const* feature_names[] = {"micro-steps",
                                         "faults",
                                         "clipping",
                                         "rates",
                                         "disorder",
                                         "holds",
                                         "early",
                                         "queued",
                                         "overlap",
                                         "reloads",
                                         "moves",
                                         "discards",
                                         "directly",
                                         "overwrites",
                                         "groups",
                                         "counts",
                                         "absences",
                                         "kinds"};
constexpr char const* load_names[] = {"",
                                      "load(callback)",
                                      "load(spans)",
                                      "broadcast(callback)",
                                      "write+broadcast()",
                                      "adopt()",
                                      "write+adopt()"};
constexpr char const* move_names[] = {"", "bind_gradients()", "bind()"};
constexpr char const* call_names[] = {
    "step()", "try_step()", "step(lr,scale)", "try_step(lr,scale)", "enqueue_step()", "discard()"};
constexpr char const* fault_names[] = {"", "NaN", "infinity", "3e38"};

template <class E>
std::size_t index(E value) {
  return static_cast<std::size_t>(value);
}

/// Sizes at which something begins, ends or is rounded.
std::size_t draw_count(Dice& dice, std::size_t ranks, bool even) {
  if (even) return 512 * dice.below(2 * ranks + 1);
  switch (dice.below(8)) {
    case 0: return dice.below(4);
    case 1: return ranks - 1 + dice.below(3);
    case 2: return 31 + dice.below(3);
    case 3: return 511 + dice.below(3);
    case 4: return 512 * ranks - 1 + dice.below(3);
    case 5: return 512 * dice.below(2 * ranks + 1);
    case 6: return dice.below(5000);
    default: return dice.below(200);
  }
}

std::vector<std::size_t> draw_shape(Dice& dice, std::size_t count) {
  std::size_t const rows = dice.pick<std::size_t>({1, 2, 3, 7});
  if (count == 0) return {rows, 0};
  if (count == 1 && dice.chance(50)) return {};
  if (count % rows == 0 && dice.chance(50)) return {rows, count / rows};
  return {count};
}

std::vector<TensorCase> draw_tensors(std::uint64_t seed, int ranks) {
  Dice dice(seed, of_tensors);
  std::vector<TensorCase> tensors;
  int const most = 1 + dice.to(19);
  bool const even = dice.chance(20);
  bool const ascending = dice.chance(70);
  std::size_t const frozen = dice.pick<std::size_t>({0, 10, 30});
  std::size_t const tied = dice.pick<std::size_t>({0, 10, 40});
  int const exponent = dice.pick({0, -4, -8, -12});
  int unit = dice.to(1);
  std::size_t total = 0;
  for (int id = 0; id < most && total < 30000; ++id) {
    TensorCase tensor{.id = id, .shape = {}, .count = 0, .unit = 0};
    unit = ascending ? unit + dice.pick({0, 0, 0, 1, 1, 2}) : dice.to(6);
    bool const ties = dice.chance(tied) && !tensors.empty();
    if (ties) {
      std::size_t const target = dice.below(tensors.size());
      tensor = tensors[target];
      tensor.id = id;
      tensor.tied = target;
    } else {
      tensor.count = draw_count(dice, static_cast<std::size_t>(ranks), even);
      tensor.shape = draw_shape(dice, tensor.count);
      tensor.frozen = dice.chance(frozen);
      tensor.whole = Dice(seed, of_whole, id).chance(25);
      tensor.wide = Dice(seed, of_kinds, id, 'w').chance(40);
      tensor.bytes = Dice(seed, of_kinds, id, 'b').chance(50);
      tensor.learning_rate = dice.pick({1.f, 1.f, 1.f, 0.5f, 0.f, 1.7f});
      tensor.weight_decay = dice.pick({1.f, 1.f, 0.f, 0.1f});
      tensor.group = Dice(seed, of_group, id).to(most_groups);
    }
    tensor.unit = unit;
    tensor.magnitude = static_cast<float>(1 << dice.to(8));
    for (int i = exponent; i < 0; ++i) tensor.magnitude *= 0.5f;
    total += ties ? 0 : tensor.count;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Hyper draw_hyper(Dice& dice) {
  return {.lr = dice.pick({1e-3f, 0.1f, 3e-2f}),
          .weight_decay = dice.pick({0.f, 1e-2f, 0.3f}),
          .momentum = dice.pick({0.f, 0.9f, 0.5f}),
          .lr_decay = dice.pick({0.f, 0.1f}),
          .eps = dice.pick({1e-8f, 1e-5f, 1e-2f}),
          .beta1 = dice.pick({0.9, 0.95, 0.}),
          .beta2 = dice.pick({0.999, 0.99, 0.5}),
          .nesterov = dice.chance(50)};
}

/// What is said about rules before a step: of all, of groups of which something is trained, of a
/// tensor that is.
std::vector<Change> draw_changes(Case const& test, int step) {
  Dice dice(test.seed, of_change, step);
  std::vector<Change> changes;
  for (int group = 0; group <= most_groups; ++group) {
    Change change{.group = group, .hyper = draw_hyper(dice), .rate_only = dice.chance(50)};
    bool const any = std::any_of(test.tensors.begin(), test.tensors.end(), [&](auto const& tensor) {
      return tensor.group == group && !tensor.frozen;
    });
    if (dice.chance(30) && (any || group == 0)) changes.push_back(change);
  }
  Change single{.hyper = draw_hyper(dice), .rate_only = dice.chance(50)};
  std::size_t const tensor = static_cast<std::size_t>(dice.next() >> 1);
  if (!dice.chance(30) || test.tensors.empty()) return changes;
  single.tensor = tensor % test.tensors.size();
  if (!test.tensors[*single.tensor].frozen) changes.push_back(single);
  return changes;
}

/// Do two tensors of a unit lie in the same memory?
bool ties_within(Case const& test, int unit) {
  std::vector<std::size_t> storages;
  for (std::size_t t = 0; t < test.tensors.size(); ++t) {
    if (test.tensors[t].unit != unit) continue;
    if (std::ranges::count(storages, test.storage(t)) > 0) return true;
    storages.push_back(test.storage(t));
  }
  return false;
}

}  // namespace

std::string name(Policies const& p) {
  return std::string(stage_names[index(p.stage)]) + "/" + number_names[index(p.number)] +
         (p.by_tensor ? "+fp32" : "") + "/" + rule_names[index(p.rule)] + "/" +
         accumulation_names[index(p.accumulation)] + "/" +
         (p.in_place   ? "in_place"
          : p.borrowed ? "borrowed"
                       : "owned");
}

std::string name(TensorCase const& tensor) {
  return tensor.name.empty() ? "t" + std::to_string(tensor.id) : tensor.name;
}

bool Case::tied(std::size_t t) const {
  for (std::size_t other = 0; other < tensors.size(); ++other) {
    if (other != t && storage(other) == storage(t)) return true;
  }
  return false;
}

int Case::units() const {
  int count = 0;
  for (TensorCase const& tensor : tensors) count = std::max(count, tensor.unit + 1);
  return count;
}

int Case::units_with_elements() const {
  std::vector<bool> used(static_cast<std::size_t>(units()), false);
  for (TensorCase const& tensor : tensors) {
    bool const gathered = !tensor.frozen || !tensor.whole;
    if (gathered && tensor.count > 0) used[static_cast<std::size_t>(tensor.unit)] = true;
  }
  return static_cast<int>(std::count(used.begin(), used.end(), true));
}

Case draw(std::uint64_t seed, Policies const& policies, int most_ranks) {
  Dice dice(seed, of_case);
  int const ranks = 1 + dice.to(most_ranks - 1);
  unsigned features = 0;
  for (unsigned bit = 1; bit < kinds; bit <<= 1) features |= dice.chance(60) ? bit : 0u;
  if (Dice(seed, of_kinds).chance(60)) features |= kinds;
  return {.seed = seed,
          .policies = policies,
          .ranks = ranks,
          .steps = 1 + dice.to(5),
          .tensors = draw_tensors(seed, ranks),
          .bucket_bytes = dice.pick<std::size_t>(
              {1, 4096, 12345, 1 + dice.below(65536), std::size_t{1} << 20, std::size_t{25} << 20}),
          .prefetch = dice.to(3),
          .hyper = draw_hyper(dice),
          .scale = {.initial = dice.pick({1.f, 8.f, 1024.f, 65536.f, 16777216.f}),
                    .growth = dice.pick({2.f, 1.f, 4.f}),
                    .backoff = dice.pick({0.5f, 0.25f, 0.01f}),
                    .minimum = dice.pick({1.f, 0.5f}),
                    .growth_interval = 1 + dice.to(2),
                    .patience = 1 + dice.to(2)},
          .features = features};
}

std::vector<Case> simpler(Case const& test) {
  std::vector<Case> result;
  auto const with = [&](bool possible, auto const& change) {
    if (possible) change(result.emplace_back(test));
  };
  with(test.steps > 1, [](Case& c) { --c.steps; });
  with(test.ranks > 1, [](Case& c) { --c.ranks; });
  for (unsigned bit = 1; bit < all_features; bit <<= 1) {
    with((test.features & bit) != 0, [&](Case& c) { c.features &= ~bit; });
  }
  // Nothing is tied to the last one.
  with(test.tensors.size() > 1, [](Case& c) { c.tensors.pop_back(); });
  with(test.prefetch > 0, [](Case& c) { c.prefetch = 0; });
  return result;
}

StepPlan plan_step(Case const& test, int step) {
  Policies const& policies = test.policies;
  // Every die is thrown whatever the features are, so that those left out change no others.
  Dice dice(test.seed, of_step, step);
  StepPlan plan{.number = step};

  Move const move = dice.chance(50) ? Move::gradients : Move::everything;
  if (dice.chance(40) && test.has(moves) && policies.borrowed && step > 0) plan.move = move;
  Load const load = dice.pick({Load::streamed,
                               Load::whole,
                               Load::broadcast,
                               Load::broadcast_held,
                               Load::adopted,
                               Load::written_and_adopted});
  if ((dice.chance(20) && test.has(reloads)) || step == 0) plan.load = load;
  if (!policies.borrowed && plan.load >= Load::adopted) plan.load = Load::streamed;
  if (policies.gathers() && plan.load == Load::broadcast_held) plan.load = Load::broadcast;
  plan.root = Dice(test.seed, of_root, step).to(test.ranks - 1);

  int const most = policies.accumulation == Accumulation::none ? 1 : 3;
  plan.micro_steps = test.has(micro_steps) ? dice.to(most) : dice.to(0);
  plan.weightless = dice.chance(4) && test.has(faults) && plan.micro_steps > 0;
  plan.says_last = dice.chance(50);
  plan.reduces_all = dice.chance(20) && test.has(early);
  plan.asks_norm = dice.chance(20) && test.has(early);

  Call const plain = dice.pick({Call::step, Call::try_step});
  Call const with_scale = dice.pick({Call::step_scaled, Call::try_step_scaled});
  plan.call = dice.chance(25) && test.has(clipping) ? with_scale : plain;
  if (dice.chance(40) && test.has(queued)) plan.call = Call::enqueue;
  if (dice.chance(10) && test.has(discards)) plan.call = Call::discard;
  plan.reports = dice.chance(60);
  plan.tries_report = dice.chance(50);
  bool const takes_scale = plan.call == with_scale;
  double const scale = dice.pick({1., 0.25, 0.3});
  if (takes_scale) plan.scale = scale;

  float const rate = dice.pick({1e-3f, 0.f, 0.05f, 0.3f});
  plan.rate_by_address = dice.chance(50) && !takes_scale;
  if ((dice.chance(50) && test.has(rates)) || takes_scale) plan.learning_rate = rate;
  double const norm = dice.pick({1e-3, 1., 30., 1e6});
  if (dice.chance(50) && test.has(clipping) && !takes_scale) plan.max_norm = norm;
  plan.skips = dice.chance(60) && !takes_scale;
  plan.overlaps = dice.chance(50) && test.has(overlap) && !takes_scale;
  bool const is_last = step + 1 == test.steps;
  plan.views = dice.chance(40) || is_last;
  plan.visits = dice.chance(40) || is_last;

  Fault fault{.kind = dice.pick({FaultKind::nan, FaultKind::infinity, FaultKind::huge}),
              .rank = dice.to(test.ranks - 1),
              .micro = dice.to(plan.passes() - 1)};
  std::size_t const tensor = static_cast<std::size_t>(dice.next() >> 1);
  std::size_t const element = static_cast<std::size_t>(dice.next() >> 1);
  if (dice.chance(20) && test.has(faults) && !test.tensors.empty()) {
    fault.tensor = tensor % test.tensors.size();
    fault.element = element % std::max(test.tensors[fault.tensor].count, std::size_t{1});
    plan.fault = fault;
  }
  if (test.has(groups)) plan.changes = draw_changes(test, step);
  long const count = 1 + dice.to(3000);
  if (dice.chance(60) && test.has(counts) && !takes_scale) plan.count = count;
  return plan;
}

Pass plan_pass(Case const& test, StepPlan const& plan, int micro, int rank) {
  Policies const& policies = test.policies;
  std::vector<int> ascending(static_cast<std::size_t>(test.units()));
  std::iota(ascending.begin(), ascending.end(), 0);

  Pass pass;
  pass.forward = ascending;
  Dice forward(test.seed, of_forward, plan.number, micro);
  if (test.has(holds) && !ascending.empty()) {
    auto const slots = std::min(test.prefetch + 1, test.units_with_elements());
    auto const most = policies.gathers() ? std::max(slots, 1) : test.units();
    pass.window = 1 + forward.below(static_cast<std::size_t>(most));
    bool const shuffles = forward.chance(60);
    if (shuffles) forward.shuffle(pass.forward);
    if (forward.chance(30)) pass.forward.push_back(pass.forward.front());
    if (forward.chance(30)) pass.forward.pop_back();
  }

  // Ranks whose reductions start at other times than others' must not gather in between, and must
  // not throw away what others have started to reduce.
  bool const alike = policies.gathers() || plan.call == Call::discard;
  Dice dice(test.seed, of_pass, plan.number, micro, alike ? 0 : rank + 1);
  pass.directly = dice.chance(30) && test.has(directly) && !policies.pools();
  pass.backward.reserve(ascending.size());
  for (auto unit = ascending.rbegin(); unit != ascending.rend(); ++unit) {
    pass.backward.push_back({.unit = *unit, .adds = 1, .closes = true, .by_name = dice.chance(30)});
  }
  if (test.has(disorder)) {
    if (!policies.pools()) dice.shuffle(pass.backward);
    for (Visit& visit : pass.backward) visit.adds = dice.pick({1, 1, 1, 0, 2});
    // What waits for units that never come fills a pool, and only what comes last fills nothing.
    std::size_t const left_out = dice.chance(40) ? dice.below(pass.backward.size() + 1) : 0;
    // A step that is given a scale has no options, so that every unit has to be asked for.
    bool const scaled = plan.call == Call::step_scaled || plan.call == Call::try_step_scaled;
    if (!scaled) pass.backward.resize(pass.backward.size() - left_out);
    bool const drops = dice.chance(30) && !pass.backward.empty();
    if (drops && (!scaled || pass.backward.back().adds > 0)) pass.backward.back().closes = false;
  }

  bool const may_overwrite =
      test.has(overwrites) && !pass.directly && policies.accumulation != Accumulation::full;
  for (Visit& visit : pass.backward) {
    visit.overwrites = dice.chance(40) && may_overwrite && visit.adds > 0;
    // Lent gradients are only read.
    visit.checked = dice.chance(50) && !policies.borrowed;
  }

  // What is written without asking for it may stand where nobody says anything.
  std::size_t const absent = dice.pick<std::size_t>({0, 20, 70});
  for (Visit& visit : pass.backward) {
    for (std::size_t t = 0; t < test.tensors.size(); ++t) {
      bool const here = test.tensors[t].unit == visit.unit && test.trained(t);
      if (!here || test.tensors[t].count == 0 || !dice.chance(absent)) continue;
      if (test.has(absences) && !test.has(directly)) visit.absent.push_back(t);
    }
  }

  Dice own(test.seed, of_pass, plan.number, micro, rank, 'w');
  double const weight = own.pick({1., 3., 17., 0.1, 1000.5, 0.});
  if (plan.micro_steps > 0) pass.weight = plan.weightless ? 0. : weight;
  return pass;
}

bool rests(Case const& test, StepPlan const& plan, std::size_t storage) {
  if (!test.has(absences) || test.has(directly)) return false;
  // What a rank says of a tensor in the whole step.
  enum Said { nothing, absent, given };
  auto const said = [&](int rank, std::size_t t) {
    Said all = nothing;
    for (int micro = 0; micro < plan.passes(); ++micro) {
      Said now = test.policies.borrowed ? given : nothing;
      for (Visit const& visit : plan_pass(test, plan, micro, rank).backward) {
        if (visit.unit != test.tensors[t].unit || (visit.adds == 0 && !visit.closes)) continue;
        now = std::ranges::count(visit.absent, t) > 0 ? absent : given;
      }
      all = std::max(all, now);
    }
    return all;
  };
  for (std::size_t t = storage; t < test.tensors.size(); ++t) {
    if (test.storage(t) != storage) continue;
    Said most = nothing;
    for (int rank = 0; rank < test.ranks; ++rank) most = std::max(most, said(rank, t));
    // Ranks that have left the unit out declare it where others did not.
    if (most != absent) return false;
  }
  return true;
}

bool regular(Case const& test) { return !test.has(disorder) && !test.has(holds); }

Gradient::Gradient(
    Case const& test, StepPlan const& plan, int micro, int rank, std::size_t tensor, int use)
    : key_(Dice(test.seed, of_gradient, plan.number, micro, rank, test.tensors[tensor].id, use)
               .next()),
      magnitude_(test.tensors[tensor].magnitude) {
  Fault const& fault = plan.fault;
  if (fault.kind != FaultKind::none && fault.tensor == tensor && fault.rank == rank &&
      fault.micro == micro) {
    fault_ = fault;
  }
}

float Gradient::faulty(FaultKind kind) {
  using Limits = std::numeric_limits<float>;
  return kind == FaultKind::nan        ? Limits::quiet_NaN()
         : kind == FaultKind::infinity ? -Limits::infinity()
                                       : 3e38f;
}

float value(Case const& test, int step, std::size_t tensor, std::size_t element) {
  Dice dice(test.seed, of_value, step, test.tensors[tensor].id, element);
  if (test.bytes(tensor)) return static_cast<float>(dice.below(256));
  float const any = (static_cast<float>(dice.next() >> 40) * 0x1p-24f - 0.5f) * 4.f;
  if (dice.below(8) > 0) return any;
  // In the middle of two bf16.
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(any) & 0xffff0000u) | 0x8000u);
}

std::string describe(Case const& test) {
  std::ostringstream text;
  text << "seed " << test.seed << ", " << name(test.policies) << ", ranks " << test.ranks
       << ", bucket " << test.bucket_bytes << " bytes, prefetch " << test.prefetch << "\nfeatures:";
  for (unsigned i = 0; i < std::size(feature_names); ++i) {
    if ((test.features >> i & 1u) != 0) text << ' ' << feature_names[i];
  }
  auto const write = [&](Hyper const& h) {
    text << "lr " << h.lr << ", weight decay " << h.weight_decay << ", momentum " << h.momentum
         << (h.nesterov ? " Nesterov" : "") << ", lr decay " << h.lr_decay << ", eps " << h.eps
         << ", betas " << h.beta1 << ' ' << h.beta2 << '\n';
  };
  text << "\nrule: ";
  write(test.hyper);
  ScaleCase const& s = test.scale;
  text << "loss scale: " << s.initial << ", growth " << s.growth << " after " << s.growth_interval
       << ", backoff " << s.backoff << ", minimum " << s.minimum << ", patience " << s.patience
       << '\n';
  for (std::size_t t = 0; t < test.tensors.size(); ++t) {
    TensorCase const& tensor = test.tensors[t];
    text << "tensor " << t << " '" << name(tensor) << "': unit " << tensor.unit << ", "
         << tensor.count << " elements [";
    for (std::size_t const extent : tensor.shape) text << ' ' << extent;
    text << " ], rates " << tensor.learning_rate << ' ' << tensor.weight_decay << ", gradients "
         << tensor.magnitude << ", group " << tensor.group << (tensor.frozen ? ", frozen" : "")
         << (tensor.frozen && tensor.whole ? ", whole" : "") << (test.wide(t) ? ", wide" : "")
         << (test.bytes(t) ? ", bytes" : "");
    if (tensor.tied) text << ", tied to " << *tensor.tied;
    text << '\n';
  }
  for (int step = 0; step < test.steps; ++step) {
    StepPlan const plan = plan_step(test, step);
    text << "step " << step << ": " << move_names[index(plan.move)] << ' '
         << load_names[index(plan.load)] << " root " << plan.root << ' '
         << call_names[index(plan.call)];
    if (plan.call == Call::enqueue && plan.reports)
      text << (plan.tries_report ? " try_report()" : " report()");
    for (int micro = 0; micro < plan.micro_steps; ++micro) text << " micro_step()";
    text << (plan.says_last ? " last" : "") << (plan.reduces_all ? " reduce_all()" : "")
         << (plan.asks_norm ? " grad_norm()" : "") << " scale " << plan.scale;
    if (plan.learning_rate) text << " lr " << *plan.learning_rate;
    if (plan.learning_rate && plan.rate_by_address) text << " address()";
    if (plan.max_norm) text << " max norm " << *plan.max_norm;
    if (plan.count) text << " count " << *plan.count;
    text << (plan.skips ? " skips" : "") << (plan.overlaps ? " overlaps" : "")
         << (plan.weightless ? " weightless" : "");
    if (Fault const& f = plan.fault; f.kind != FaultKind::none) {
      text << " fault " << fault_names[index(f.kind)] << " in rank " << f.rank << ", micro-batch "
           << f.micro << ", tensor " << f.tensor << ", element " << f.element;
    }
    for (std::size_t t = 0; t < test.tensors.size(); ++t) {
      if (test.storage(t) == t && test.trained(t) && rests(test, plan, t)) text << " (rests) " << t;
    }
    text << '\n';
    for (Change const& change : plan.changes) {
      text << (change.rate_only ? "  set_lr() " : "  set_rule() ");
      if (change.group > 0) text << "of group " << change.group << ": ";
      if (change.tensor) text << "of tensor " << *change.tensor << ": ";
      write(change.hyper);
    }
    for (int micro = 0; micro < plan.passes(); ++micro) {
      for (int rank = 0; rank < test.ranks; ++rank) {
        Pass const pass = plan_pass(test, plan, micro, rank);
        text << "  micro-batch " << micro << ", rank " << rank << ": weight " << pass.weight
             << (pass.directly ? " (directly)" : "") << " forward";
        for (int const unit : pass.forward) text << ' ' << unit;
        text << " by " << pass.window << ", backward";
        for (Visit const& visit : pass.backward) {
          text << ' ' << visit.unit << " x" << visit.adds;
          if (visit.overwrites)
            text << (visit.checked ? " (overwritten,checked)" : " (overwritten)");
          if (visit.overwrites && ties_within(test, visit.unit)) text << " (tied)";
          if (!visit.closes) text << " (dropped)";
          for (std::size_t const t : visit.absent) text << " (absent) " << t;
        }
        text << '\n';
      }
    }
  }
  return text.str();
}

}  // namespace differential
