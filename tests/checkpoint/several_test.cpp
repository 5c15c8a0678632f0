#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/proof.hpp"
#include "zero/checkpoint/offline.hpp"

// Several optimizers that are one checkpoint: all of them or none, each under its name.
namespace several_test {
namespace {

using namespace checkpoint_tests;
using zero::InProcess;
using Trainer = checkpoint_tests::Trainer<InProcess>;
using Names = std::vector<std::string>;

template <class Stage>
using Full = zero::ShardedOptimizer<InProcess, Stage>;
template <class Stage>
using Half = zero::ShardedOptimizer<InProcess, Stage, zero::Mixed<zero::fp16>, zero::Lion>;

zero::Mixed<zero::fp16> const low_scale{.loss_scale = {.initial = 4.f, .growth_interval = 3}};

/// Tensors of the same names, which are not the same.
std::vector<zero::Tensor> of_generator() { return toy::model(); }
std::vector<zero::Tensor> of_critic() {
  return {{.name = "wte", .shape = {70, 11}},
          {.name = "h0.frozen", .shape = {31}, .frozen = true},
          {.name = "b", .shape = {700}, .unit = 1},
          {.name = "tied", .shape = {70, 11}, .unit = 1, .tied_to = "wte"}};
}

/// What both hold, from all ranks.
using Both = std::pair<Held, Held>;

/// Steps together, after the critic has taken some more.
template <class G, class C>
void go_on(G& generator, C& critic, InProcess& comm, long first, long last) {
  for (long step = first; step < last; ++step) {
    checkpoint_tests::train(critic, comm.rank(), comm.size(), 3 * step, 3 * step + 2);
    checkpoint_tests::train(generator, comm.rank(), comm.size(), step, step + 1);
    checkpoint_tests::train(critic, comm.rank(), comm.size(), 3 * step + 2, 3 * step + 3);
  }
}

/// Saves after two steps, and gives what is held then and two steps later.
std::pair<Both, Both> save(ModelFiles& files, bool async) {
  std::pair<Both, Both> held;
  std::mutex mutex;
  zero::run_ranks(2, [&](InProcess& comm) {
    Full<zero::stage::PosG> generator{comm, of_generator(), zero::Bucket{4096}};
    Half<zero::stage::PosGP> critic{comm, of_critic(), low_scale};
    toy::load(generator);
    toy::load(critic);
    go_on(generator, critic, comm, 0, 2);
    std::vector<zero::NamedOptimizer> const both{{"generator", &generator}, {"critic", &critic}};
    std::byte const blob[] = {std::byte(7), std::byte(comm.rank())};
    zero::SaveOptions const options{.user = {{"epoch", 1}}, .rank_blob = blob};
    zero::Checkpoints run(
        "run", {.snapshot_bytes = async ? zero::Checkpoints::plan(both, 2) : 0}, files);
    if (async) {
      CHECK(!run.save_async({{"generator", &generator}, {"critic", &critic}}, options));
    } else {
      auto const saved = run.save({{"generator", &generator}, {"critic", &critic}}, options);
      CHECK(saved.path == "run/000001-step-2");
    }
    collect(generator, held.first.first, mutex);
    collect(critic, held.first.second, mutex);
    go_on(generator, critic, comm, 2, 4);
    collect(generator, held.second.first, mutex);
    collect(critic, held.second.second, mutex);
    if (async) CHECK(run.finish()->step == 2);
    CHECK(run.list().size() == 1);
  });
  files.settle();
  return held;
}

template <class G, class C>
void check_resumed(ModelFiles& files, std::pair<Both, Both> const& held, int ranks) {
  INFO(ranks << " ranks, " << G::Stage::name << ", " << C::Stage::name);
  Both loaded;
  Both later;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    G generator{comm, of_generator(), zero::Bucket{512}};
    C critic{comm, of_critic(), low_scale, zero::Bucket{1}};
    toy::load(generator);
    toy::load(critic);
    zero::Checkpoints run("run", {}, files);
    // In whatever order.
    auto const report =
        run.resume({{"critic", &critic}, {"generator", &generator}}, {.verify_first = ranks == 2});
    REQUIRE(report);
    CHECK(report->step == 2);
    CHECK(report->user == nlohmann::json{{"epoch", 1}});
    CHECK(report->blobs.size() == 2);
    CHECK((report->own_blob(comm.rank(), comm.size()) != nullptr) == (ranks == 2));
    CHECK(generator.steps() == 2);
    CHECK(critic.steps() == 6);
    CHECK(critic.loss_scale() == 16.f);
    collect(generator, loaded.first, mutex);
    collect(critic, loaded.second, mutex);
    go_on(generator, critic, comm, 2, 4);
    collect(generator, later.first, mutex);
    collect(critic, later.second, mutex);
  });
  CHECK(loaded == held.first);
  CHECK(later == held.second);
}

TEST_CASE(
    "what was saved together goes on under other ranks, stages and buckets, each as its own") {
  for (bool const async : {false, true}) {
    ModelFiles files;
    auto const held = save(files, async);
    CHECK(held.first.first.ranks_agree);
    check_resumed<Full<zero::stage::PosG>, Half<zero::stage::PosGP>>(files, held, 2);
    check_resumed<Full<zero::stage::PosGP>, Half<zero::stage::Replicated>>(files, held, 1);
    check_resumed<Full<zero::stage::Replicated>, Half<zero::stage::PosG>>(files, held, 3);
  }
}

TEST_CASE("tools see the tensors of each optimizer behind its name") {
  ModelFiles files;
  auto const held = save(files, false);
  std::string const path = "run/000001-step-2";
  CHECK(zero::verify_checkpoint(path, files).empty());
  zero::Catalog const catalog = zero::read_catalog(files, path);
  CHECK(catalog.manifest.optimizers() == Names{"generator", "critic"});
  CHECK(catalog.manifest.files.size() == 4);
  CHECK(catalog.manifest.files[3].name == "rank-00001.critic.safetensors");
  CHECK(catalog.tensors.at("generator/wte").about.shape !=
        catalog.tensors.at("critic/wte").about.shape);
  CHECK(catalog.optimizers[1].tensors[3].tied_to == "critic/wte");
  CHECK(catalog.optimizers[1].step == 6);
  // Of one of them alone the model can be written; all of them have no one type.
  check_says(failure_of([&] { zero::export_checkpoint(path, "all.safetensors", {}, files); }),
             "is of several optimizers, of which one is written: 'generator', 'critic'");
  check_says(failure_of([&] {
               zero::export_checkpoint(path, "x.safetensors", {.optimizer = "x"}, files);
             }),
             "has no optimizer 'x'");
  zero::export_checkpoint(path, "critic.safetensors", {.optimizer = "critic"}, files);
  zero::run_ranks(1, [&](InProcess& comm) {
    Half<zero::stage::PosG> critic{comm, of_critic(), low_scale};
    zero::load_parameters_from(critic, "critic.safetensors", {}, files);
    auto const weights = critic.parameters(1);
    for (std::size_t i = 0; i < 700; ++i) {
      if (static_cast<float>(weights[0][i]) == held.first.second.parameters.at("b")[i]) continue;
      FAIL_CHECK("element " << i);
      break;
    }
  });
}

/// What loading with other names says, on so many ranks.
std::string loading(ModelFiles& files, Names const& names, zero::LoadOptions const& options = {}) {
  return failure_of_all(2, [&](InProcess& comm) {
    std::vector<std::unique_ptr<Trainer>> trainers;
    std::vector<zero::NamedOptimizer> optimizers;
    std::vector<std::vector<float>> before;
    for (std::string const& name : names) {
      trainers.push_back(std::make_unique<Trainer>(comm));
      optimizers.emplace_back(name, &trainers.back()->optimizer());
      before.push_back(trainers.back()->contents());
    }
    zero::Checkpoints run("run", {}, files);
    std::string const failure = failure_of([&] { run.load(optimizers, *run.latest(), options); });
    for (std::size_t i = 0; i < trainers.size(); ++i) {
      bool const changed = trainers[i]->contents() != before[i];
      CHECK(changed == failure.empty());
      trainers[i]->step();  // nothing is lost
    }
    if (!failure.empty()) zero::fail(zero::ErrorKind::data, failure);
  });
}

TEST_CASE("other names are refused in one sentence on every rank, and change nothing") {
  ModelFiles several;
  ModelFiles one;
  zero::run_ranks(2, [&](InProcess& comm) {
    Trainer a(comm);
    Trainer b(comm);
    a.step();
    b.step();
    b.step();
    zero::Checkpoints("run", {}, several).save({{"a", &a.optimizer()}, {"b", &b.optimizer()}});
    zero::Checkpoints("run", {}, one).save(a.optimizer());
  });
  for (ModelFiles* const files : {&several, &one}) files->settle();
  std::string const where = "data: data: on rank 0: 'run/000001-step-1' ";
  auto const misfit = [&](std::string const& what) {
    return where + "does not fit these optimizers:" + what;
  };
  CHECK(loading(several, {"a", "b"}) == "");
  CHECK(loading(several, {"b", "a"}) == "");
  CHECK(loading(several, {"a", "b", "c"}) == misfit(" not in the checkpoint: 'c'"));
  CHECK(loading(several, {"b"}) == misfit(" not given: 'a'"));
  CHECK(loading(several, {"x", "b"}) == misfit(" not in the checkpoint: 'x'; not given: 'a'"));
  CHECK(loading(several, {""}) ==
        where + "is of several optimizers, which are loaded by name: 'a', 'b'");
  CHECK(loading(one, {"a", "b"}) ==
        where + "is of one optimizer without a name; 'a', 'b' cannot load it");
  CHECK(loading(several, {"b"}, {.strict = false}) == "");
  std::string const mistake = "data: invalid argument: on rank 0: ";
  CHECK(loading(several, {"a", "a"}) == mistake + "two optimizers are named 'a'");
  CHECK(loading(several, {"a", "b/c"}) ==
        mistake +
            "'b/c' cannot be the name of an optimizer: it has 1 to 64 letters and digits of "
            "ASCII, '-', '_' and '.'");
  CHECK(loading(several, {"a", "b"}, {.parts = {{.tensor = "w"}}}) ==
        mistake + "the part of tensor 'w' is of none of these optimizers");
  CHECK(loading(several, {}) == "data: invalid argument: no optimizer is given");
  // What does not fit one of them changes none.
  std::string const failure = failure_of_all(2, [&](InProcess& comm) {
    Trainer a(comm);
    Trainer b(comm, {{.name = "w", .shape = {7}}});
    auto const before = a.contents();
    zero::Checkpoints run("run", {}, several);
    std::string const said = failure_of([&] {
      run.resume({{"a", &a.optimizer()}, {"b", &b.optimizer()}});
    });
    CHECK(a.contents() == before);
    a.step();
    zero::fail(zero::ErrorKind::data, said);
  });
  check_says(failure, "'w' has shape [7] here and [37, 11] in the checkpoint");
}

TEST_CASE("ranks that save other optimizers, or one twice, save nothing") {
  ModelFiles files;
  auto const told = failure_of_all(2, [&](InProcess& comm) {
    Trainer a(comm);
    Trainer b(comm);
    bool const odd = comm.rank() == 1;
    zero::Checkpoints run("run", {}, files);
    auto const save = [&](char const* first, char const* second, Trainer& other) {
      return failure_of([&] { run.save({{first, &a.optimizer()}, {second, &other.optimizer()}}); });
    };
    check_says(save("a", odd ? "c" : "b", b),
               "of different optimizers or with different CheckpointOptions::keep or "
               "SaveOptions::frozen; here 'a', ");
    CHECK(save("a", "b", a) == "invalid argument: on rank 0: 'a' and 'b' are one optimizer");
    InProcess other = comm.split(0, comm.rank());
    Trainer elsewhere(other);
    CHECK(save("a", "b", elsewhere) ==
          "invalid argument: on rank 0: 'a' and 'b' live over different communicators");
    CHECK(run.list().empty());
    CHECK(save("a", "b", b) == "");
  });
  CHECK(told == "");
  CHECK(zero::Checkpoints("run", {}, files).list().size() == 1);
}

TEST_CASE("damage of one of them passes over the checkpoint of all") {
  ModelFiles sound;
  std::vector<std::vector<float>> wanted(2);
  zero::run_ranks(2, [&](InProcess& comm) {
    Trainer a(comm);
    Trainer b(comm);
    zero::Checkpoints run("run", {.keep = 2}, sound);
    for (int step = 1; step <= 4; ++step) {
      a.step();
      b.step();
      run.save({{"a", &a.optimizer()}, {"b", &b.optimizer()}});
      if (step == 3) wanted[static_cast<std::size_t>(comm.rank())] = a.contents();
    }
    if (comm.rank() == 0) CHECK(run.list().size() == 2);  // who removes waits for it
  });
  sound.settle();
  std::vector<std::string> left;
  sound.list("run", left);
  CHECK(left.size() == 3);  // and the lock
  for (std::size_t const at : {std::size_t{40}, SIZE_MAX}) {
    ModelFiles files = sound.crashed(0, 0);
    std::string const file = "run/000004-step-4/rank-00001.b.safetensors";
    std::string bytes = read_all(files, file);
    bytes[std::min(at, bytes.size() - 1)] ^= 1;
    write_all(files, file, bytes);
    zero::run_ranks(2, [&](InProcess& comm) {
      Trainer a(comm);
      Trainer b(comm);
      zero::Checkpoints run("run", {}, files);
      auto const report = run.resume({{"a", &a.optimizer()}, {"b", &b.optimizer()}});
      REQUIRE(report);
      CHECK(report->step == 3);
      REQUIRE(report->skipped.size() == 1);
      check_says(report->skipped[0], "rank-00001.b.safetensors");
      CHECK(a.contents() == wanted[static_cast<std::size_t>(comm.rank())]);
      CHECK(b.contents() == a.contents());
      a.step();
      b.step();
    });
  }
}

TEST_CASE("after a crash anywhere in a save of several, all are of one checkpoint") {
  for (int const ranks : {1, 2}) {
    ModelFiles files;
    std::vector<std::vector<std::vector<float>>> saved(4);
    std::vector<std::size_t> durable(4);
    for (auto& each : saved) each.resize(static_cast<std::size_t>(ranks));
    zero::run_ranks(ranks, [&](InProcess& comm) {
      Trainer a(comm);
      Trainer b(comm);
      zero::Checkpoints run("run", {.keep = 1}, files);
      for (std::size_t step = 1; step <= 3; ++step) {
        a.step();
        b.step();
        run.save({{"a", &a.optimizer()}, {"b", &b.optimizer()}});
        saved[step][static_cast<std::size_t>(comm.rank())] = a.contents();
        if (comm.rank() == 0) durable[step] = files.changes();
      }
    });
    std::size_t const last = files.changes();
    ModelFiles state;
    std::mutex mutex;
    zero::run_ranks(ranks, [&](InProcess& comm) {
      auto const rank = static_cast<std::size_t>(comm.rank());
      Trainer a(comm);
      Trainer b(comm);
      for (std::size_t i = 0; i < 2 * (last + 1); ++i) {
        std::size_t const changes = i / 2;
        meet(comm);
        if (rank == 0) state = files.crashed(changes, i % 8);
        meet(comm);
        ModelFiles own = state;
        zero::Checkpoints run("run", {}, own);
        auto const report = run.resume({{"a", &a.optimizer()}, {"b", &b.optimizer()}});
        auto const found = static_cast<std::size_t>(report ? report->step : 0);
        std::size_t oldest = 0;
        for (std::size_t step = 1; step <= 3; ++step)
          oldest = durable[step] <= changes ? step : oldest;
        bool const right = found >= oldest && (found == 0 || (a.contents() == saved[found][rank] &&
                                                              b.contents() == saved[found][rank]));
        if (right) continue;
        std::lock_guard const lock(mutex);
        FAIL_CHECK(ranks << " ranks, behind change " << changes << " of " << last << ": step "
                         << found << ", at least " << oldest);
      }
    });
  }
}

}  // namespace
}  // namespace several_test
