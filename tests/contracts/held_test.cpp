/// A run that is resumed by hand from what `visit_held` and `counters()` show: bit for bit, under
/// another stage, with states of 8 bits and with masters that are held as remainders.
#include "contracts/ranks.hpp"
#include "support/coded_model.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace held_test {
namespace {

using namespace coded_model;
using contracts::on_ranks;
using zero::Coding;
using zero::HeldArray;
using zero::InProcess;
using zero::Mixed;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;

constexpr int ranks = 3;

/// Arrays of whole tensors, put together from all ranks.
struct Saved {
  struct Array {
    zero::DType dtype{};
    std::vector<std::byte> bytes{};
    friend bool operator==(Array const&, Array const&) = default;
  };
  using Key = std::tuple<std::string, std::string, Coding>;

  zero::Counters counters{};
  std::map<Key, Array> arrays{};
  std::mutex mutex{};

  static Key key(Tensor const& tensor, HeldArray const& array) {
    return {tensor.name, std::string(array.name), array.coding};
  }
  template <class O>
  void take(O const& optimizer) {
    zero::Counters const now = optimizer.counters();
    std::lock_guard const lock(mutex);
    counters = now;
    optimizer.visit_held(
        [&](Tensor const& tensor, HeldArray const& array, std::span<std::byte const> run) {
          Array& whole = arrays[key(tensor, array)];
          whole.dtype = array.dtype;
          std::size_t const at = array.first * zero::size_of(array.dtype);
          whole.bytes.resize(std::max(whole.bytes.size(), at + run.size()));
          std::copy(run.begin(), run.end(), whole.bytes.begin() + static_cast<std::ptrdiff_t>(at));
        });
  }
  template <class O>
  void give(O& optimizer) const {
    optimizer.fill_held(
        [&](Tensor const& tensor, HeldArray const& array, std::span<std::byte> run) {
          Array const& whole = arrays.at(key(tensor, array));
          std::size_t const at = array.first * zero::size_of(array.dtype);
          std::copy_n(
              whole.bytes.begin() + static_cast<std::ptrdiff_t>(at), run.size(), run.begin());
        });
    optimizer.restore(counters);
  }
};

/// A step of gradients whose sums over ranks are exact in any type and any order.
template <class O>
void exact_step(O& optimizer, long number) {
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      using G = std::remove_cvref_t<decltype(gradients[i][0])>;
      auto const seed = static_cast<std::uint64_t>(unit) * 100 + static_cast<std::uint64_t>(number);
      for (std::size_t e = 0; e < gradients[i].size(); ++e) {
        float const small = std::rint((toy::uniform(i, e, seed) - 0.5f) * 62.f);
        gradients[i][e] = G(std::ldexp(small, -static_cast<int>(e % 9) - 4));
      }
    }
    optimizer.reduce(std::move(gradients));
  }
  optimizer.step();
}

template <class R>
R rule() {
  R rule;
  rule.lr = 1e-2;
  return rule;
}

/// Steps [first, last) of a run that begins with the values of the model, or goes on from what was
/// saved, and what is held after them.
template <class Stage, class P, class R>
void train(Saved const* from, Saved& to, long first, long last, zero::Bucket bucket) {
  on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
    contracts::Optimizer<Stage, P, R> optimizer{comm, model(), rule<R>(), bucket, zero::Seed{5}};
    // What is frozen comes from elsewhere.
    optimizer.load_parameters(fill);
    if (from != nullptr) {
      from->give(optimizer);
      // Every rank has the parameters of the new masters.
      optimizer.check_parameters();
    }
    for (long number = first; number < last; ++number) exact_step(optimizer, number);
    expect(optimizer.steps() == last, "updates");
    to.take(optimizer);
    optimizer.settle();
  });
}

template <class P, class R = zero::AdamW8bit>
struct Case {
  using Precision = P;
  using Rule = R;
};

}  // namespace

TEST_CASE_TEMPLATE("what is held is filled in under another stage, and the run goes on to its bits",
                   C,
                   Case<Mixed<zero::bf16, zero::Rest8>>,
                   Case<Mixed<zero::bf16, zero::Rest16>>,
                   Case<zero::Bf16<zero::StochasticRounding>, zero::AdamW>) {
  using P = typename C::Precision;
  using R = typename C::Rule;
  Saved half;
  train<PosG, P, R>(nullptr, half, 0, 3, {1});
  Saved whole;
  train<PosG, P, R>(nullptr, whole, 0, 6, {1});
  Saved resumed;
  train<PosGP, P, R>(&half, resumed, 3, 6, {12'345});
  CHECK(resumed.arrays == whole.arrays);
  CHECK(resumed.counters == whole.counters);
  Saved replicated;
  train<Replicated, P, R>(&half, replicated, 3, 6, {zero::MiB});
  CHECK(replicated.arrays == whole.arrays);
}

TEST_CASE("entries are those of a checkpoint: masters in full, codes, and scales slice by slice") {
  using P = Mixed<zero::bf16, zero::Rest8>;
  Saved held;
  train<PosG, P, zero::AdamW8bit>(nullptr, held, 0, 1, {1});
  auto const of = [&](char const* tensor, char const* array, Coding coding) {
    auto const found = held.arrays.find({tensor, array, coding});
    return found == held.arrays.end() ? Saved::Array{} : found->second;
  };
  for (Tensor const& tensor : model()) {
    bool const shown = !tensor.frozen && tensor.tied_to.empty();
    std::size_t const count = shown ? zero::element_count(tensor) : 0;
    std::size_t const slice = slice_count(tensor);
    std::size_t const scales = count / slice * ((slice + 31) / 32);
    CAPTURE(tensor.name);
    char const* const name = tensor.name.c_str();
    CHECK(of(name, "master", Coding::values).bytes.size() == 4 * count);
    for (auto const& [array, coding] :
         {std::pair{"exp_avg", Coding::root}, std::pair{"exp_avg_sq", Coding::root_of_squares}}) {
      bool const coded = is_coded(tensor);
      CHECK(of(name, array, coding).bytes.size() == (coded ? count : 0));
      CHECK(of(name, array, Coding::root_scales).bytes.size() == (coded ? scales : 0));
      CHECK(of(name, array, Coding::values).bytes.size() == (coded ? 0 : 4 * count));
      if (coded && shown) CHECK(of(name, array, coding).dtype == zero::DType::u8);
    }
  }
}

TEST_CASE("numbers that codes stand for are not enough: some become other codes") {
  on_ranks(2, [&](InProcess& comm, auto const& expect) {
    using O = contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit>;
    O one{comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{1}};
    one.load_parameters(fill);
    for (long number = 0; number < 3; ++number) exact_step(one, number);
    O values{comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{1}};
    O bytes{comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{1}};
    values.load_parameters(fill);
    bytes.load_parameters(fill);
    std::vector<float> shown;
    one.visit_owned([&](Tensor const&, std::size_t, auto masters, auto const& states) {
      shown.insert(shown.end(), masters.begin(), masters.end());
      for (auto const& state : states) shown.insert(shown.end(), state.begin(), state.end());
    });
    std::size_t at = 0;
    values.fill_owned([&](Tensor const&, std::size_t, auto masters, auto const& states) {
      for (float& each : masters) each = shown[at++];
      for (auto const& state : states) {
        for (float& each : state) each = shown[at++];
      }
    });
    std::vector<std::byte> held;
    one.visit_held(
        [&](Tensor const&, HeldArray const&, auto run) { contracts::append(held, run); });
    std::size_t byte = 0;
    bytes.fill_held([&](Tensor const&, HeldArray const&, auto run) {
      for (std::byte& each : run) each = held[byte++];
    });
    AllHeld wanted;
    AllHeld rounded;
    AllHeld exact;
    collect(one, wanted);
    collect(values, rounded);
    collect(bytes, exact);
    expect(rounded != wanted, "codes of numbers");
    expect(exact == wanted, "codes of bytes");
  });
}

TEST_CASE("masters and states that the host cannot reach are shown and filled in as copies") {
  on_ranks(2, [&](InProcess& comm, auto const& expect) {
    contracts::OnDevice<PosG, Mixed<zero::bf16, zero::Rest8>> one{comm};
    contracts::OnDevice<PosG, Mixed<zero::bf16, zero::Rest8>> other{comm};
    contracts::constant_pass(one, 0.5f);
    one.optimizer.step();
    std::vector<std::byte> held;
    one.optimizer.visit_held(
        [&](Tensor const&, HeldArray const&, auto run) { contracts::append(held, run); });
    std::size_t byte = 0;
    other.optimizer.fill_held([&](Tensor const&, HeldArray const&, auto run) {
      for (std::byte& each : run) each = held[byte++];
    });
    other.optimizer.restore(one.optimizer.counters());
    for (float const value : {-2.f, 0.25f}) {
      contracts::constant_pass(one, value);
      one.optimizer.step();
      contracts::constant_pass(other, value);
      other.optimizer.step();
    }
    one.device.synchronize();
    other.device.synchronize();
    expect(contracts::owned_bits(other.optimizer) == contracts::owned_bits(one.optimizer),
           "masters and states");
  });
}

TEST_CASE("codes that stand for no number are refused on every rank, and so is every step then") {
  for (auto const& bad : {std::pair{"exp_avg", 0x80},
                          std::pair{"exp_avg_sq", 1},
                          std::pair{"exp_avg_sq", 2},
                          std::pair{"exp_avg_sq", 3}}) {
    // Clang 14 lets no lambda have the names of a structured binding.
    auto const array = bad.first;
    auto const code = bad.second;
    CAPTURE(array);
    CAPTURE(code);
    on_ranks(2, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit> optimizer{
          comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{zero::MiB}};
      optimizer.load_parameters(fill);
      exact_step(optimizer, 0);
      // Slice 2 of `layers` begins with element 8198.
      auto const write = [&](std::size_t element, int byte) {
        optimizer.fill_held([&](Tensor const& tensor, HeldArray const& held, auto run) {
          if (held.name != array) return;
          if (held.coding == Coding::root_scales || held.coding == Coding::values) return;
          // Others are behind it, one of them in a later tensor.
          if (tensor.name == "torchao") run.front() = static_cast<std::byte>(byte);
          if (tensor.name != "layers") return;
          for (std::size_t const each : {element, element + 700}) {
            if (each < held.first || each - held.first >= run.size()) continue;
            run[each - held.first] = static_cast<std::byte>(byte);
          }
        });
      };
      auto const said = refusal([&] { write(8204, code); });
      std::string const element = std::string("fill_held() left a code for element 8204 of '") +
                                  array + "' of tensor 'layers' that stands for no number";
      expect(said.find(element) != std::string::npos, "what it says: " + said);
      auto const step = refusal([&] { exact_step(optimizer, 1); });
      expect(step.find("are neither the old nor the new") != std::string::npos,
             "a step after it: " + step);
      optimizer.discard_gradients();
      write(8204, 0);
      exact_step(optimizer, 1);
      expect(optimizer.steps() == 2, "a step after a fill of codes that exist");
    });
  }
}

TEST_CASE("a master that its parameter cannot hold is refused as by fill_owned") {
  on_ranks(2, [&](InProcess& comm, auto const& expect) {
    contracts::Optimizer<PosG, Mixed<zero::bf16, zero::Rest8>, zero::AdamW8bit> optimizer{
        comm, model(), zero::Bucket{1}};
    optimizer.load_parameters(fill);
    auto const said = refusal([&] {
      optimizer.fill_held([](Tensor const& tensor, HeldArray const& held, auto run) {
        if (tensor.name != "wte" || held.name != "master" || held.first != 0) return;
        float const large = std::numeric_limits<float>::max();
        std::memcpy(run.data(), &large, sizeof(large));
      });
    });
    expect(said.find("element 0 of tensor 'wte' is 3.4028235e+38, which would become infinite") !=
               std::string::npos,
           said);
  });
}

}  // namespace held_test
