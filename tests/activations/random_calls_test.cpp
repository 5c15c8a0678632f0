/// Random calls, in order and out of it, held against what a few lines say is legal: what is legal
/// gives back what was stored, what is not is refused in words that name the layer, and changes
/// nothing. A transfer that fails in the middle ends in errors, never in wrong bytes.
/// ZERO_ACTIVATION_CALLS=1000000 makes more of them.
#include "activations/late_transfer.hpp"
#include "activations/passes.hpp"
#include "support/test.hpp"
#include "zero/activations.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"
#include "zero/transfer/file_transfer.hpp"
#include "zero/transfer/host_transfer.hpp"

namespace random_calls_test {
namespace {

using zero::ActivationCheckpoint;
using zero::DType;
using zero::Error;
using zero::ErrorKind;
namespace activation = zero::activation;

/// Layers 0, 2 and 5, the middle one with two tensors of different types.
std::vector<ActivationCheckpoint> described() {
  return {{"x", 0, 37, DType::f32},
          {"x", 2, 130, DType::f32},
          {"mask", 2, 15, DType::u8},
          {"x", 5, 1, DType::f32}};
}
constexpr int layers[] = {0, 2, 5};

/// One call, which need not make sense.
struct Call {
  enum class Kind { store, fetch, release, end_step, discard } kind = Kind::store;
  int layer = 0;
  int batch = 0;
  std::size_t checkpoint = 0;
  std::size_t elements = 0;
  DType dtype = DType::f32;
  std::uint8_t content = 0;
};

/// What is stored and what is in use, and nothing else.
class Reference {
 public:
  using Key = std::pair<int, int>;  ///< micro-batch, layer
  struct Layer {
    std::map<std::size_t, std::uint8_t> stored{};  ///< content by checkpoint
    bool in_use = false;
  };

  Reference(std::size_t batches, std::size_t uses) : batches_(batches), uses_(uses) {}

  [[nodiscard]] bool is_legal(Call const& call) const {
    Key const key{call.batch, call.layer};
    auto const found = held_.find(key);
    bool const known =
        std::find(std::begin(layers), std::end(layers), call.layer) != std::end(layers);
    auto const of_batch = [&](auto const& entry) { return entry.first.first == call.batch; };
    switch (call.kind) {
      case Call::Kind::store: {
        if (!known || call.batch < 0 || call.checkpoint >= tensors(call.layer)) return false;
        bool const mask = call.checkpoint == 1;
        if (call.dtype != (mask ? DType::u8 : DType::f32)) return false;
        if (call.elements != elements(call.layer, call.checkpoint)) return false;
        if (std::none_of(held_.begin(), held_.end(), of_batch)) return in_flight() < batches_;
        if (found != held_.end() &&
            (found->second.in_use || found->second.stored.contains(call.checkpoint))) {
          return false;
        }
        return std::none_of(held_.begin(), held_.end(), [&](auto const& entry) {
          return of_batch(entry) && entry.first.second > call.layer;
        });
      }
      case Call::Kind::fetch:
        if (found == held_.end() || found->second.in_use) return false;
        if (found->second.stored.size() != tensors(call.layer) || in_use() >= uses_) return false;
        return std::none_of(held_.begin(), held_.end(), [&](auto const& entry) {
          return of_batch(entry) && entry.first.second > call.layer && !entry.second.in_use;
        });
      case Call::Kind::release: return found != held_.end() && found->second.in_use;
      case Call::Kind::end_step: return held_.empty();
      case Call::Kind::discard: return in_use() == 0;
    }
    return false;
  }
  /// Something legal has been done.
  void note(Call const& call) {
    Key const key{call.batch, call.layer};
    switch (call.kind) {
      case Call::Kind::store: held_[key].stored[call.checkpoint] = call.content; break;
      case Call::Kind::fetch: held_[key].in_use = true; break;
      case Call::Kind::release: held_.erase(key); break;
      case Call::Kind::end_step: break;
      case Call::Kind::discard: held_.clear(); break;
    }
  }
  [[nodiscard]] std::map<Key, Layer> const& held() const { return held_; }

  [[nodiscard]] static std::size_t tensors(int layer) { return layer == 2 ? 2 : 1; }
  [[nodiscard]] static std::size_t elements(int layer, std::size_t checkpoint) {
    if (checkpoint == 1) return 15;
    return layer == 0 ? 37 : layer == 2 ? 130 : 1;
  }

 private:
  [[nodiscard]] std::size_t in_flight() const {
    std::set<int> batches;
    for (auto const& entry : held_) batches.insert(entry.first.first);
    return batches.size();
  }
  [[nodiscard]] std::size_t in_use() const {
    return static_cast<std::size_t>(std::count_if(
        held_.begin(), held_.end(), [](auto const& entry) { return entry.second.in_use; }));
  }

  std::size_t batches_;
  std::size_t uses_;  ///< layers that may be in use at once
  std::map<Key, Layer> held_;
};

/// Any call.
Call any_call(std::mt19937& random, Reference const& reference) {
  auto const below = [&](unsigned limit) { return static_cast<int>(random() % limit); };
  Call call;
  call.kind = static_cast<Call::Kind>(below(3));
  if (below(20) == 0) call.kind = Call::Kind::end_step;
  if (below(40) == 0) call.kind = Call::Kind::discard;
  call.layer = layers[below(3)];
  call.batch = below(3);
  if (!reference.held().empty() && below(2) == 0) {
    auto at = reference.held().begin();
    std::advance(at, below(static_cast<unsigned>(reference.held().size())));
    call.batch = at->first.first;
    if (call.kind != Call::Kind::store) call.layer = at->first.second;
  }
  call.checkpoint = call.layer == 2 ? static_cast<std::size_t>(below(2)) : 0;
  call.dtype = call.checkpoint == 1 ? DType::u8 : DType::f32;
  call.elements = Reference::elements(call.layer, call.checkpoint);
  call.content = static_cast<std::uint8_t>(below(250));
  switch (below(40)) {
    case 0: call.layer = below(9) - 1; break;
    case 1: call.batch = below(9) - 4; break;
    case 2: call.checkpoint = static_cast<std::size_t>(below(4)); break;
    case 3: call.elements += static_cast<std::size_t>(below(3)); break;
    case 4: call.dtype = call.dtype == DType::u8 ? DType::f32 : DType::u8; break;
    default: break;
  }
  return call;
}

/// One that is legal at least every other time, so that steps come far.
Call random_call(std::mt19937& random, Reference const& reference) {
  Call call = any_call(random, reference);
  if (random() % 2 == 0) return call;
  for (int i = 0; i < 20 && !reference.is_legal(call); ++i) call = any_call(random, reference);
  return call;
}

/// The i-th element of a tensor with this content.
template <class T>
T element(std::uint8_t content, std::size_t i) {
  return static_cast<T>((content + i) % 251);
}

/// Fails from some call on, as a disk that is full.
class FullTransfer : public activations::LateTransfer {
 public:
  explicit FullTransfer(int calls) : left_(calls) {}
  Ticket send_out(Slow to, void const* from, std::size_t bytes) {
    count();
    return LateTransfer::send_out(to, from, bytes);
  }
  Ticket bring_in(void* to, Slow from, std::size_t bytes) {
    count();
    return LateTransfer::bring_in(to, from, bytes);
  }
  void wait(Ticket const& ticket) {
    count();
    LateTransfer::wait(ticket);
  }

 private:
  void count() {
    if (left_ <= 0) zero::fail(ErrorKind::resource, "the disk is full");
    --left_;
  }
  int left_;
};
static_assert(zero::Transfer<FullTransfer>);

/// Calls of one rank, made and judged.
template <class Store>
class Caller {
 public:
  using Fetched = typename Store::Fetched;

  Caller(Store& store, std::size_t batches, std::size_t uses)
      : store_(&store), reference_(batches, uses) {}

  [[nodiscard]] Reference const& reference() const { return reference_; }
  [[nodiscard]] long legal() const { return legal_; }
  [[nodiscard]] long illegal() const { return illegal_; }

  /// @throws std::runtime_error if the store does not do as it should; Error (resource) as a
  ///   transfer
  void call(Call const& what) {
    bool const legal = reference_.is_legal(what);
    // What nobody has cannot be given back.
    if (what.kind == Call::Kind::release && !legal) return;
    std::string message;
    try {
      make(what);
    } catch (Error const& error) {
      if (error.kind() != ErrorKind::invalid_argument) throw;
      message = error.message();
    }
    if (legal != message.empty()) {
      throw std::runtime_error((legal ? "refused: " + message : "not refused") + ": " + text(what));
    }
    if (legal) {
      ++legal_;
      reference_.note(what);
      return;
    }
    ++illegal_;
    if (!names_layer(what, message)) throw std::runtime_error("no layer: " + message);
  }

 private:
  void make(Call const& what) {
    switch (what.kind) {
      case Call::Kind::store:
        if (what.dtype == DType::u8) return put<std::uint8_t>(what);
        return put<float>(what);
      case Call::Kind::fetch: {
        Fetched fetched = store_->fetch(what.layer, what.batch);
        check(fetched, what);
        if (reference_.is_legal(what))
          in_use_.emplace(Reference::Key{what.batch, what.layer}, std::move(fetched));
        return;
      }
      case Call::Kind::release: {
        auto const at = in_use_.find({what.batch, what.layer});
        // What it shows has stayed what it was.
        check(at->second, what);
        in_use_.erase(at);
        return;
      }
      case Call::Kind::end_step: return store_->end_step();
      case Call::Kind::discard: return store_->discard();
    }
  }
  template <class T>
  void put(Call const& what) {
    std::vector<T> tensor(what.elements);
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = element<T>(what.content, i);
    store_->store(what.layer,
                  std::span<T const>(tensor),
                  {.checkpoint = what.checkpoint, .micro_batch = what.batch});
  }
  void check(Fetched const& fetched, Call const& what) const {
    auto const found = reference_.held().find({what.batch, what.layer});
    if (found == reference_.held().end()) return;
    for (auto const& entry : found->second.stored) {
      bool const same = entry.first == 1
                            ? is<std::uint8_t>(fetched.template get<std::uint8_t>(1), entry.second)
                            : is<float>(fetched.template get<float>(0), entry.second);
      if (!same) throw std::runtime_error("wrong bytes: " + text(what));
    }
  }
  template <class T>
  static bool is(std::span<T const> values, std::uint8_t content) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != element<T>(content, i)) return false;
    }
    return true;
  }
  [[nodiscard]] bool names_layer(Call const& what, std::string const& message) const {
    auto const begins = [&](int layer) {
      std::string const words = "layer " + std::to_string(layer);
      return message.compare(0, words.size(), words) == 0 &&
             std::string(" ,").find(message[words.size()]) != std::string::npos;
    };
    bool const about_one = what.kind == Call::Kind::store || what.kind == Call::Kind::fetch;
    if (about_one) return begins(what.layer);
    auto const& held = reference_.held();
    return std::any_of(
        held.begin(), held.end(), [&](auto const& entry) { return begins(entry.first.second); });
  }
  [[nodiscard]] static std::string text(Call const& what) {
    return "call " + std::to_string(static_cast<int>(what.kind)) + " of layer " +
           std::to_string(what.layer) + ", micro-batch " + std::to_string(what.batch) +
           ", checkpoint " + std::to_string(what.checkpoint);
  }

  Store* store_;
  Reference reference_;
  std::map<Reference::Key, Fetched> in_use_;
  long legal_ = 0;
  long illegal_ = 0;
};

int calls() {
  char const* const wanted = std::getenv("ZERO_ACTIVATION_CALLS");
  return wanted == nullptr ? 40000 : std::atoi(wanted);
}

/// Ranks that make the same calls, and now and then a wrong one of their own.
template <class Placement, class Transfer = zero::HostTransfer>
void compare(int ranks, int prefetch, int count) {
  CAPTURE(ranks);
  CAPTURE(prefetch);
  constexpr std::size_t batches = 2;
  bool const pooled = Placement::offloaded || (Placement::partitioned && ranks > 1);
  std::size_t const uses = pooled ? static_cast<std::size_t>(prefetch) + 1 : 100;
  std::atomic<long> legal{0};
  std::atomic<long> illegal{0};
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    Transfer transfer;
    zero::Activations store{comm,
                            described(),
                            Placement{},
                            transfer,
                            zero::MicroBatches{static_cast<int>(batches)},
                            zero::Prefetch{prefetch}};
    Caller caller{store, batches, uses};
    std::mt19937 random(static_cast<unsigned>(100 * ranks + prefetch));
    std::mt19937 own(static_cast<unsigned>(comm.rank()));
    for (int i = 0; i < count; ++i) {
      caller.call(random_call(random, caller.reference()));
      Call const alone = random_call(own, caller.reference());
      if (own() % 4 == 0 && !caller.reference().is_legal(alone)) caller.call(alone);
    }
    legal += caller.legal();
    illegal += caller.illegal();
    // A rank that ends now would abandon what it has gathered ahead, and others may not have begun
    // that.
    zero::barrier(comm);
  });
  CHECK(legal > ranks * count / 8);
  CHECK(illegal > ranks * count / 8);
}

TEST_CASE("random calls: what is illegal is refused and changes nothing") {
  int const each = calls() / 10;
  for (int const ranks : {1, 2, 3}) {
    compare<activation::Whole>(ranks, 1, each);
    for (int const prefetch : {0, 1, 2}) {
      compare<activation::Pa>(ranks, prefetch, each);
      compare<activation::PaCpu, activations::LateTransfer>(ranks, prefetch, each);
    }
  }
}

TEST_CASE(
    "random calls: a transfer that fails in the middle ends in errors, never in wrong bytes") {
  zero::Self alone;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    FullTransfer transfer(static_cast<int>(seed * 3));
    zero::Activations store{
        alone, described(), activation::PaCpu{}, transfer, zero::MicroBatches{2}};
    Caller caller{store, 2, 2};
    auto const many = [&] {
      for (int i = 0; i < 4000; ++i) caller.call(random_call(random, caller.reference()));
    };
    CHECK(refusal(many, ErrorKind::resource) == "the disk is full");
    // Whatever is asked for from now on, nothing wrong comes back.
    for (int i = 0; i < 50; ++i) {
      int const layer = layers[random() % 3];
      int const batch = static_cast<int>(random() % 2);
      Call const call{.kind = random() % 2 == 0 ? Call::Kind::fetch : Call::Kind::release,
                      .layer = layer,
                      .batch = batch};
      try {
        caller.call(call);
      } catch (Error const& error) {
        CHECK(error.kind() == ErrorKind::resource);
      } catch (std::runtime_error const& error) {
        // Slots that a failed fetch had taken are not given back.
        CHECK(std::string(error.what()).find("refused: ") == 0);
      }
    }
  }
}

TEST_CASE("random calls: a transfer that fails on one rank ends all of them with one story") {
  for (int at = 0; at < 24; ++at) {
    CAPTURE(at);
    auto const said = activations::told(3, [&](zero::InProcess& comm) {
      FullTransfer transfer(comm.rank() == 1 ? at : 1000000);
      zero::Activations store{comm, described(), activation::PaCpu{}, transfer};
      Caller caller{store, 1, 2};
      std::mt19937 random(static_cast<unsigned>(at));
      for (;;) caller.call(random_call(random, caller.reference()));
    });
    CHECK(said[1] == "the disk is full");
    CHECK(said[0] == said[2]);
    CHECK_MESSAGE(said[0].find("rank 1 failed: ") == 0, said[0]);
    CHECK_MESSAGE(said[0].find("the disk is full") != std::string::npos, said[0]);
  }
}

TEST_CASE("slower memory that one rank does not get ends all ranks") {
  auto const said = activations::told(2, [&](zero::InProcess& comm) {
    zero::FileTransfer file(comm.rank() == 1 ? "/nowhere" : "/tmp");
    zero::Activations store{comm, described(), activation::PaCpu{}, file};
    store.store(0, std::span<float const>(std::vector<float>(37)));
    (void)store.fetch(0).layer();
  });
  for (std::string const& text : said) {
    CHECK_MESSAGE(text.find("cannot make a file in '/nowhere'") != std::string::npos, text);
  }
}

}  // namespace
}  // namespace random_calls_test
