/// @file
/// One rank that plays a case on the optimizer and compares all it sees with the reference. The
/// only place that calls the optimizer.
#pragma once

#include "any_communicator.hpp"
#include "case.hpp"
#include "combinations.hpp"
#include "memory.hpp"
#include "rank.hpp"
#include "reference.hpp"
#include "support/lent_memory.hpp"
#include "support/standard.hpp"
#include "trapped_space.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/zero.hpp"

namespace differential {

template <bool by_tensor, class P>
struct BothOf {
  using Type = P;
};
template <class P>
struct BothOf<true, P> {
  using Type = zero::ByTensor<P, zero::Fp32>;
};

/// The types behind the policies.
template <std::size_t Combination>
struct Types {
  static constexpr Policies P = combinations[Combination];
  template <auto Value, class... T>
  using Choice = std::tuple_element_t<static_cast<std::size_t>(Value), std::tuple<T...>>;
  using Stage = Choice<P.stage,
                       zero::stage::Replicated,
                       zero::stage::Pos,
                       zero::stage::PosG,
                       zero::stage::PosGP>;
  using Single = Choice<P.number,
                        zero::Fp32,
                        zero::Mixed<zero::bf16>,
                        zero::Mixed<zero::fp16>,
                        zero::MixedFloatGradients<zero::bf16>,
                        zero::Mixed<zero::bf16, zero::HalfAway>,
                        zero::Mixed<zero::bf16, zero::Rest16>>;
  using Precision = typename BothOf<P.by_tensor, Single>::Type;
  using Rule = Choice<P.rule,
                      zero::PlainSgd,
                      zero::Sgd,
                      zero::Adagrad,
                      zero::Adam,
                      zero::AdamW,
                      zero::Lion,
                      zero::RmsProp<true, true>,
                      zero::Lamb>;
  using Accumulation =
      Choice<P.accumulation, zero::AccumulateNone, zero::AccumulateFull, zero::AccumulateShard>;
  using Memory = Choice<P.borrowed + P.in_place,
                        zero::Owned<Metered>,
                        zero::Borrowed<Metered>,
                        zero::BorrowedInPlace<Metered>>;
};

template <class R>
R rule_of(Hyper const& hyper) {
  R rule{};
  rule.lr = hyper.lr;
  rule.weight_decay = hyper.weight_decay;
  if constexpr (requires { rule.momentum; }) rule.momentum = hyper.momentum;
  if constexpr (requires { rule.nesterov; }) rule.nesterov = hyper.nesterov;
  if constexpr (requires { rule.lr_decay; }) rule.lr_decay = hyper.lr_decay;
  if constexpr (requires { rule.eps; }) rule.eps = hyper.eps;
  if constexpr (requires { rule.beta1; }) rule.beta1 = hyper.beta1;
  if constexpr (requires { rule.beta2; }) rule.beta2 = hyper.beta2;
  if constexpr (requires { rule.alpha; }) rule.alpha = hyper.beta2;
  return rule;
}

template <class P>
P precision_of(ScaleCase const& scale) {
  P precision{};
  if constexpr (P::loss_scaled) {
    precision.loss_scale = {.initial = scale.initial,
                            .growth = scale.growth,
                            .growth_interval = scale.growth_interval,
                            .backoff = scale.backoff,
                            .minimum = scale.minimum,
                            .patience = scale.patience};
  }
  return precision;
}

/// Plays a case under a combination of policies, over a communicator and memory of its space.
template <std::size_t Combination, class C>
class Trainer : Rank {
  using T = Types<Combination>;
  using Space = typename C::Space;
  using Optimizer = zero::ShardedOptimizer<zero::Counting<C>,
                                           typename T::Stage,
                                           typename T::Precision,
                                           typename T::Rule,
                                           typename T::Accumulation,
                                           typename T::Memory,
                                           zero::Bucket,
                                           zero::Prefetch>;
  using Parameter = typename Optimizer::Parameter;
  using Wire = typename Optimizer::Wire;
  static constexpr Policies P = T::P;
  /// Does the space run the host's code, in its queue?
  static constexpr bool queued = std::is_same_v<Space, trapped::Space>;

 public:
  Trainer(C& comm,
          AnyAllocator const& allocator,
          Case const& test,
          std::vector<ExpectedStep> const& expected)
      : Rank(comm.rank(), allocator, Space::host_accessible, queued, test, expected),
        comm_(comm),
        counted_(comm),
        space_(counted_.space()),
        rate_(allocator, 1),
        optimizer_(counted_,
                   tensors_,
                   typename T::Stage{},
                   precision_of<typename T::Precision>(test.scale),
                   rule_of<typename T::Rule>(test.hyper),
                   typename T::Accumulation{},
                   typename T::Memory{Metered{&meter_}},
                   zero::Bucket{test.bucket_bytes},
                   zero::Prefetch{test.prefetch}) {}

  /// @param beside  outlives the call
  /// @throws Difference at the first one
  void play(Beside<C> const& beside = {}) {
    try {
      beside_ = &beside;
      auto const planned =
          Optimizer::plan({.world_size = test_.ranks, .communicator_bytes = zero::held_by(comm_)},
                          tensors_,
                          zero::Bucket{test_.bucket_bytes},
                          zero::Prefetch{test_.prefetch});
      require(planned.memory == optimizer_.plan().memory, "the two plans differ");
      for (step_ = 0; step_ < test_.steps; ++step_) {
        play_step(expected_[static_cast<std::size_t>(step_)]);
      }
      optimizer_.settle();
      play_beside();
      require(meter_.intact(), "wrote outside its memory");
      toy::fetch(space_, std::span<float const>(rate_.span()));  // waits for all that is queued
      if (!noted_.empty()) throw Difference(noted_);
    } catch (Difference const&) {
      throw;
    } catch (std::exception const& error) {
      throw Difference(where() + error.what());
    }
  }

 private:
  void play_step(ExpectedStep const& expected) {
    plan_ = plan_step(test_, step_);
    for (Change const& change : plan_.changes) {
      std::string const name = change.tensor      ? tensors_[*change.tensor].name
                               : change.group > 0 ? "g" + std::to_string(change.group)
                                                  : "";
      if (change.rate_only) optimizer_.set_lr(name, change.hyper.lr);
      if (!change.rate_only) optimizer_.set_rule(name, rule_of<typename T::Rule>(change.hyper));
    }
    if constexpr (P.borrowed) lend();
    load();
    play_beside();
    compares_ = compares_ || expected.loads_all;
    counted_.reset();
    for (int micro = 0; micro < plan_.passes(); ++micro) play_pass(micro, expected);
    if constexpr (!P.borrowed) declare_left_out();
    if (plan_.reduces_all) optimizer_.reduce_all();
    if (plan_.asks_norm) {
      require_same(optimizer_.grad_norm(), expected.report.grad_norm, "grad_norm()");
    }
    if (plan_.call == Call::discard) {
      optimizer_.discard_gradients();
    } else {
      call(expected);
    }
    // A queue that may go on is left alone.
    if (!queued || plan_.call != Call::enqueue || plan_.reports) {
      require_same(optimizer_.loss_scale(), expected.next_loss_scale, "the next loss scale");
      require(optimizer_.steps() == expected.report.step, "steps()");
      for (std::size_t t = 0; t < tensors_.size(); ++t)
        require(optimizer_.steps(t) == expected.steps[test_.storage(t)], "steps(tensor)");
    }
    check_memory(optimizer_.held(), optimizer_.plan().memory, expected);
    if (plan_.views) look_at_parameters(expected.after);
    if (plan_.visits) look_at_owned(expected.after);
    if constexpr (P.borrowed) {
      auto const found = [this] { differ("wrote outside lent memory"); };
      parameters_->look_around(found);
      gradients_->look_around(found);
    }
  }

  /// What is not a step may allocate.
  void play_beside() {
    std::size_t const before = meter_.calls;
    if (*beside_) (*beside_)(step_, optimizer_);
    allocations_ += meter_.calls - before;
  }

  /// Lends memory, or moves what was lent.
  void lend() requires(P.borrowed) {
    if (step_ > 0 && plan_.move == Move::none) return gradients_->zero();
    optimizer_.settle();
    bool const flat = Dice(test_.seed, step_, 'f').chance(40);
    auto const old_gradients = std::exchange(gradients_, lent<Wire>(step_, flat));
    if (plan_.move == Move::gradients) {
      if (flat) optimizer_.bind_gradients(gradients_->all());
      if (!flat) optimizer_.bind_gradients(gradients_->spans());
      old_gradients->spoil();
      return old_gradients->settle();
    }
    auto const old = std::exchange(parameters_, lent<Parameter>(step_ + test_.steps, flat));
    for (std::size_t t = 0; old && t < tensors_.size(); ++t) {
      std::span<Parameter> const from = old->storage(t);
      if (from.empty()) continue;
      space_.copy(parameters_->storage(t).data(), from.data(), from.size_bytes());
    }
    if (flat) optimizer_.bind(parameters_->all(), gradients_->all());
    if (!flat) optimizer_.bind(parameters_->spans(), gradients_->spans());
    if (!old) return;
    old->spoil();
    old_gradients->spoil();
    old->settle();
  }
  template <class E>
  std::unique_ptr<Lent<E, Space>> lent(int which, bool flat) const {
    return std::make_unique<Lent<E, Space>>(space_, meter_.source, test_, which, flat);
  }

  void load() {
    bool const bytes_first = Dice(test_.seed, step_, 'b').chance(50);
    if (bytes_first) load_bytes();
    load_numbers();
    if (!bytes_first) load_bytes();
  }
  /// Bytes come with all other values, from every rank or from one.
  void load_bytes() {
    bool const loads =
        plan_.load == Load::streamed || plan_.load == Load::whole || plan_.load == Load::broadcast;
    bool has = false;
    for (std::size_t t = 0; t < tensors_.size(); ++t) has = has || test_.bytes(t);
    if (!loads || !has) return;
    auto const stream = [&](zero::Tensor const& tensor, std::size_t first, auto out) {
      auto const loaded = values(index(tensor), first, out.size());
      std::transform(loaded.begin(), loaded.end(), out.begin(), [](float value) {
        return static_cast<std::byte>(static_cast<int>(value));
      });
    };
    if (plan_.load == Load::broadcast) {
      optimizer_.broadcast_bytes(stream, plan_.root);
    } else {
      optimizer_.load_bytes(stream);
    }
  }
  void load_numbers() {
    auto const stream = [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
      auto const loaded = values(index(tensor), first, out.size());
      std::copy(loaded.begin(), loaded.end(), out.begin());
    };
    if (plan_.load == Load::streamed) optimizer_.load_parameters(stream);
    if (plan_.load == Load::whole) {
      std::vector<std::vector<float>> whole;
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        whole.push_back(values(t, 0, test_.storage(t) == t ? test_.tensors[t].count : 0));
      }
      optimizer_.load_parameters(std::vector<std::span<float const>>(whole.begin(), whole.end()));
    }
    if (plan_.load == Load::broadcast) {
      optimizer_.broadcast_parameters(
          [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
            require(comm_.rank() == plan_.root, "is asked, but is not the root");
            stream(tensor, first, out);
          },
          plan_.root);
    }
    if constexpr (!P.gathers()) {
      if (plan_.load == Load::broadcast_held) {
        write(comm_.rank() == plan_.root);
        optimizer_.broadcast_parameters(plan_.root);
      }
    }
    if (plan_.load != Load::none) compares_ = plan_.load >= Load::adopted;
    if constexpr (P.borrowed) {
      if (plan_.load < Load::adopted) return;
      if (plan_.load == Load::written_and_adopted || step_ == 0) write(true);
      optimizer_.adopt_parameters();
    }
  }
  /// Writes parameters where they lie: the case's values, or what nobody may see.
  void write(bool known) requires(!P.gathers()) {
    optimizer_.settle();
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (test_.storage(t) != t) continue;
      auto const written = values(t, 0, test_.tensors[t].count);
      as_held(t, [&](auto element) {
        using E = decltype(element);
        reach(space_, optimizer_.template parameter<E>(t), [=](std::span<E> to) {
          float const unknown =
              std::is_same_v<E, std::uint8_t> ? 7.f : std::numeric_limits<float>::quiet_NaN();
          for (std::size_t i = 0; i < to.size(); ++i) to[i] = E(known ? written[i] : unknown);
        });
      });
    }
  }

  void play_pass(int micro, ExpectedStep const& expected) {
    Pass const pass = plan_pass(test_, plan_, micro, comm_.rank());
    // Whether the host asks for it or what is queued reads it where it lies.
    float const asked = queued ? 1.f : optimizer_.loss_scale();
    float const* const loss_scale = queued ? optimizer_.loss_scale_address() : &asked;
    reach(space_,
          std::span(optimizer_.loss_scale_address(), 1),
          [this, wanted = expected.report.loss_scale](std::span<float const> lying) {
            require_same(lying[0], wanted, "the loss scale where it lies");
          });
    if (!queued) require_same(asked, expected.report.loss_scale, "loss_scale()");
    if (plan_.micro_steps > 0) {
      bool const last = plan_.says_last && micro + 1 == plan_.micro_steps;
      optimizer_.micro_step({.weight = pass.weight, .last = last});
    }
    if constexpr (P.borrowed && P.accumulation == Accumulation::shard) {
      if (micro > 0) gradients_->zero();
    }
    for (std::size_t t = 0; pass.directly && t < tensors_.size(); ++t) {
      if (!test_.trained(t)) continue;
      if constexpr (P.borrowed) add(space_, gradients_->storage(t), micro, t, 0, loss_scale);
      if constexpr (!P.borrowed && !P.pools()) {
        as_summed(t, [&](auto element) {
          using E = decltype(element);
          add(space_, optimizer_.template gradient<E>(t), micro, t, 0, loss_scale);
        });
      }
    }
    look_at_units(pass.forward, pass.window, expected.before, "forward");
    for (Visit const& visit : pass.backward) {
      look_at_units({visit.unit}, 1, expected.before, "backward");
      for (int use = 1; use <= visit.adds; ++use) {
        bool const writes = visit.overwrites && use == 1;
        auto gradients = writes ? written(visit) : optimizer_.gradients(visit.unit);
        std::size_t i = gradients.size();
        for (std::size_t t = tensors_.size(); t-- > 0;) {
          if (test_.tensors[t].unit != visit.unit) continue;
          --i;
          as_summed(t, [&](auto element) {
            using E = decltype(element);
            std::span<E> const sums = visit.by_name ? gradients.template as<E>(tensors_[t].name)
                                                    : gradients.template as<E>(i);
            if (std::ranges::count(visit.absent, t) > 0) return;
            // What is tied begins at zero all the same.
            if (writes && !test_.tied(t) && !sums.empty())
              space_.zero(sums.data(), sums.size_bytes());
            add(space_, sums, micro, t, use, loss_scale);
          });
        }
        for (std::size_t const t : visit.absent) optimizer_.without_gradient(tensors_[t]);
        if (visit.closes && use == visit.adds) optimizer_.reduce(std::move(gradients));
      }
      if (!visit.closes || visit.adds > 0) continue;
      auto gradients = optimizer_.gradients(visit.unit);
      for (std::size_t const t : visit.absent) optimizer_.without_gradient(tensors_[t]);
      optimizer_.reduce(std::move(gradients));
    }
  }

  /// Units that this rank has left out in the whole step, and another rank has not, have to be
  /// declared: they are zeros here, as the reference has them.
  void declare_left_out() {
    auto const asked_for = [&](int rank) {
      std::vector<bool> units(optimizer_.units().size(), false);
      for (int micro = 0; micro < plan_.passes(); ++micro) {
        for (Visit const& visit : plan_pass(test_, plan_, micro, rank).backward) {
          if (visit.adds > 0 || visit.closes) units[static_cast<std::size_t>(visit.unit)] = true;
        }
      }
      return units;
    };
    auto said = asked_for(comm_.rank());
    for (int rank = 0; rank < test_.ranks; ++rank) {
      auto const others = asked_for(rank);
      for (std::size_t unit = 0; unit < said.size(); ++unit) {
        if (others[unit] && !said[unit]) optimizer_.without_gradient(static_cast<int>(unit));
        said[unit] = said[unit] || others[unit];
      }
    }
  }

  /// Gradients of a unit that will be written in full.
  zero::UnitGradients<Optimizer> written(Visit const& visit) {
    if constexpr (P.accumulation != Accumulation::full) {
      return optimizer_.gradients(visit.unit, zero::Overwrite{.checked = visit.checked});
    }
    return optimizer_.gradients(visit.unit);
  }

  /// Acquires units in this order, `window` at a time, and compares their parameters.
  void look_at_units(std::vector<int> const& units,
                     std::size_t window,
                     Model const& model,
                     char const* what) {
    std::deque<zero::UnitParameters<Optimizer>> held;
    for (int const unit : units) {
      if (held.size() == window) held.pop_front();
      held.push_back(optimizer_.parameters(unit));
      std::size_t i = 0;
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        if (test_.tensors[t].unit != unit) continue;
        as_held(t, [&](auto element) {
          using E = decltype(element);
          compare_parameters(space_, held.back().template as<E>(i++), model, t, what);
        });
      }
    }
  }
  /// The step as planned, and its report or its failure.
  void call(ExpectedStep const& expected) {
    float const rate = plan_.learning_rate.value_or(0.f);
    space_.upload(rate_.span().data(), &rate, sizeof(rate));
    zero::StepOptions const told = options(rate_.span().data());
    std::uint64_t const before = downloaded();
    Outcome found;
    switch (plan_.call) {
      case Call::step: found = attempt([&] { return optimizer_.step(told); }); break;
      case Call::try_step: found = take(optimizer_.try_step(told)); break;
      case Call::step_scaled:
        found = attempt([&] { return optimizer_.step(rate, plan_.scale); });
        break;
      case Call::try_step_scaled: found = take(optimizer_.try_step(rate, plan_.scale)); break;
      case Call::enqueue:
      case Call::discard: optimizer_.enqueue_step(told); break;
    }
    // The words of a report and nothing else, once values were compared.
    std::size_t const report = plan_.call == Call::enqueue ? 0 : sizeof(zero::detail::StepOutcome);
    if (queued && !compares_ && (found || report == 0))
      require(downloaded() - before == report, "downloads something else than a report");
    check_traffic(
        counted_.counts(), optimizer_.plan(static_cast<std::uint64_t>(plan_.passes())), expected);
    compares_ = false;
    if (plan_.call == Call::enqueue) {
      if (!plan_.reports) return;
      found = plan_.tries_report ? take(optimizer_.try_report())
                                 : attempt([&] { return optimizer_.report(); });
    }
    check(found, expected);
  }
  [[nodiscard]] std::uint64_t downloaded() const {
    if constexpr (queued) return space_.device().downloaded_bytes;
    return 0;
  }

  void look_at_parameters(Model const& model) {
    auto const units = optimizer_.units();
    look_at_units({units.begin(), units.end()}, 1, model, "parameters(unit)");
    if constexpr (!P.gathers()) {
      optimizer_.settle();
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        as_held(t, [&](auto element) {
          using E = decltype(element);
          std::span<E const> const seen(optimizer_.template parameter<E>(t));
          compare_parameters(space_, seen, model, t, "parameter(tensor)");
        });
        if constexpr (P.borrowed) {
          std::span<Parameter const> const lies(parameters_->storage(t));
          compare_parameters(space_, lies, model, t, "lent parameters");
        } else if constexpr (!P.pools()) {
          as_summed(t, [&](auto element) {
            using E = decltype(element);
            std::span<E const> const sums(optimizer_.template gradient<E>(t));
            compare(space_, sums, zeros_, 0, t, "gradient(tensor)");
          });
        }
      }
    }
  }

  /// Each element's master and states, and how many ranks have them.
  void look_at_owned(Model const& model) {
    std::vector<std::size_t> begins;
    std::size_t total = 0;
    for (auto const& tensor : model.masters)
      begins.push_back(std::exchange(total, total + tensor.size()));
    std::vector<std::int64_t> owners(total, 0);
    optimizer_.visit_owned(
        [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto states) {
          std::size_t const t = index(tensor);
          std::size_t const count = model.masters[t].size();
          require(first <= count && masters.size() <= count - first,
                  "visits beyond a tensor's end");
          zero::space::Host const here;
          compare(here, masters, model.masters[t], first, t, "master");
          require(states.size() == model.states.size(), "another number of state arrays");
          for (std::size_t k = 0; k < states.size(); ++k) {
            require(states[k].size() == masters.size(), "a state array of another size");
            compare(here, states[k], model.states[k][t], first, t, "state");
          }
          for (std::size_t i = 0; i < masters.size(); ++i) ++owners[begins[t] + first + i];
        });
    check_owners(owners);
  }
  /// Does every trained element have so many owners? Collective.
  void check_owners(std::vector<std::int64_t> const& owners) {
    if (owners.empty()) return;
    toy::Buffer<std::int64_t, AnyAllocator> const buffer(meter_.source, owners.size());
    std::span<std::int64_t> const sums = buffer.span();
    space_.upload(sums.data(), owners.data(), sums.size_bytes());
    zero::run(comm_,
              {.op = zero::Op::all_reduce,
               .dtype = zero::DType::i64,
               .accumulate = zero::DType::i64,
               .count = sums.size(),
               .send = sums.data(),
               .recv = sums.data()});
    std::int64_t const wanted = P.stage == Stage::replicated ? test_.ranks : 1;
    for (std::int64_t const count : toy::fetch(space_, std::span<std::int64_t const>(sums)))
      require(count == wanted, "how many own an element");
  }

  /// Calls `use` with an element of the type that a tensor's parameters, or gradients, are of. A
  /// frozen tensor has no gradients, of whatever type.
  template <class Use>
  void as_held(std::size_t t, Use const& use) const {
    if (test_.bytes(t)) return use(std::uint8_t{});
    test_.wide(t) ? use(float{}) : use(Parameter{});
  }
  template <class Use>
  void as_summed(std::size_t t, Use const& use) const {
    test_.wide(t) ? use(float{}) : use(Wire{});
  }

  [[nodiscard]] std::size_t most_elements() const {
    std::size_t most = 0;
    for (TensorCase const& tensor : test_.tensors) most = std::max(most, tensor.count);
    return most;
  }
  [[nodiscard]] std::size_t index(zero::Tensor const& tensor) const {
    return static_cast<std::size_t>(&tensor - optimizer_.tensors().data());
  }

  C& comm_;
  zero::Counting<C> counted_;
  Space space_;
  Beside<C> const* beside_ = nullptr;
  toy::Buffer<float, AnyAllocator> rate_;  ///< of the step
  std::vector<float> zeros_ = std::vector<float>(most_elements());
  std::unique_ptr<Lent<Parameter, Space>> parameters_{};
  std::unique_ptr<Lent<Wire, Space>> gradients_{};
  Optimizer optimizer_;
};

}  // namespace differential
