// Saves the toy model, writes it with export_model, or reads one with load_parameters_from: the
// part that is C++ of tests in Python.
//
// usage: zero_model_program save DIR STEPS     a checkpoint of 3 ranks after each step, and what
//          export_model makes of the last: DIR.parameter.safetensors, DIR.master.safetensors
//        zero_model_program grid DIR       the same of a grid of 2 x 2 ranks, whose model axis
//        divides
//          the columns of "a", and which has a stacked tensor "w"
//        zero_model_program several DIR    a checkpoint of 2 ranks of two optimizers, the toy model
//          in two precisions, and what export_model makes of the second: DIR.critic.safetensors
//        zero_model_program large DIR      a checkpoint whose "w" has an infinite parameter in fp16
//        of
//          a master weight that is not
//        zero_model_program frozen DIR     the toy model with frozen bytes, "codes", saved by 3
//        ranks
//          without frozen tensors, and in DIR.all with them; and what export_model makes of either:
//          DIR.adapters.safetensors, DIR.all.safetensors
//        zero_model_program write fp32|bf16|fp16 parameter|master MAX_FILE_BYTES PATH
//        zero_model_program read PATH      prints name, first and last element and sum per tensor
#include "support/give_zeros.hpp"
#include "support/standard.hpp"
#include "support/toy_model.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/grid.hpp"
#include "zero/zero.hpp"

namespace {

template <class Precision>
void write(std::vector<std::string> const& arguments) {
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer<zero::InProcess, zero::stage::PosGP, Precision> optimizer{comm,
                                                                                     toy::model()};
    toy::load(optimizer);
    zero::export_model(optimizer,
                       arguments[4],
                       {.dtype = arguments[2] == "master" ? zero::ExportDType::master
                                                          : zero::ExportDType::parameter,
                        .max_file_bytes = std::stoull(arguments[3])});
  });
}

void save(std::string const& path, int steps) {
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer<zero::InProcess, zero::stage::PosGP, zero::Mixed<zero::bf16>> optimizer{
        comm, toy::model(), zero::Bucket{1}};
    toy::load(optimizer);
    zero::Checkpoints run{path};
    for (int step = 0; step < steps; ++step) {
      give_zeros(optimizer).step();
      run.save(optimizer, {.user = {{"epoch", 3}}});
    }
    zero::export_model(optimizer, path + ".parameter.safetensors");
    zero::export_model(
        optimizer, path + ".master.safetensors", {.dtype = zero::ExportDType::master});
  });
}

void grid(std::string const& path) {
  zero::run_ranks(4, [&](zero::InProcess& world) {
    zero::Grid grid(world, 2, 2);
    auto const column = static_cast<std::size_t>(grid.model().rank()) * 4;
    std::vector<zero::Tensor> const tensors{{.name = "a", .shape = {6, 4}, .partitioned = true},
                                            {.name = "w", .shape = {3, 4, 5}, .stacked = true}};
    std::vector<zero::TensorPart> const parts{
        {.tensor = "a", .shape = {6, 8}, .boxes = {{.offset = {0, column}, .extent = {6, 4}}}}};
    zero::ShardedOptimizer optimizer{grid, tensors, zero::stage::PosG{}};
    optimizer.load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
      for (std::size_t i = first; i < first + out.size(); ++i) {
        std::size_t const place = tensor.name == "a" ? i / 4 * 8 + column + i % 4 : i;
        out[i - first] = static_cast<float>(place) + 0.25f;
      }
    });
    zero::Checkpoints run{path};
    run.save(optimizer, {.parts = parts});
    zero::export_model(optimizer, path + ".master.safetensors", {.parts = parts});
  });
}

void several(std::string const& path) {
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer generator{comm, toy::model()};
    zero::ShardedOptimizer critic{comm, toy::model(), zero::Mixed<zero::bf16>{}};
    toy::load(generator);
    toy::load(critic);
    give_zeros(critic).step();
    zero::step_together({}, give_zeros(generator), give_zeros(critic));
    zero::Checkpoints{path}.save({{"generator", &generator}, {"critic", &critic}});
    zero::export_model(critic, path + ".critic.safetensors");
  });
}

void frozen(std::string const& path) {
  auto tensors = toy::model();
  tensors.push_back({.name = "codes",
                     .shape = {13},
                     .dtype = zero::DType::u8,
                     .file_dtype = "F8_E4M3",
                     .frozen = true});
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer<zero::InProcess, zero::stage::PosGP, zero::Mixed<zero::bf16>> optimizer{
        comm, tensors, zero::Bucket{1}};
    toy::load(optimizer);
    optimizer.load_bytes([](auto const&, std::size_t first, std::span<std::byte> out) {
      for (std::byte& each : out) each = static_cast<std::byte>(7 * first++);
    });
    zero::Checkpoints{path}.save(optimizer, {.frozen = false});
    zero::Checkpoints{path + ".all"}.save(optimizer);
    zero::export_model(optimizer, path + ".adapters.safetensors", {.frozen = false});
    zero::export_model(optimizer, path + ".all.safetensors");
  });
}

void large(std::string const& path) {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm,
                                   {{.name = "w", .shape = {4}}},
                                   zero::Mixed<zero::fp16>{.loss_scale = {.initial = 1.f}},
                                   zero::PlainSgd{.lr = 1e5}};
  optimizer.load_parameters([](auto&&...) {});
  auto gradients = optimizer.gradients(0);
  gradients[0][2] = zero::fp16(-1.f);
  optimizer.reduce(std::move(gradients));
  optimizer.step();
  zero::Checkpoints{path}.save(optimizer);
}

void read(std::string const& path) {
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer<zero::InProcess, zero::stage::PosG, zero::Fp32> optimizer{comm,
                                                                                     toy::model()};
    zero::load_parameters_from(optimizer, path);
    if (comm.rank() != 0) return;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      auto const values = optimizer.parameter(t);
      double sum = 0.;
      for (float const value : values) sum += static_cast<double>(value);
      std::printf("%s %.17g %.17g %.17g\n",
                  optimizer.tensors()[t].name.c_str(),
                  values.empty() ? 0. : static_cast<double>(values.front()),
                  values.empty() ? 0. : static_cast<double>(values.back()),
                  sum);
    }
  });
}

}  // namespace

int main(int count, char** values) {
  std::vector<std::string> const arguments(values + 1, values + count);
  try {
    if (arguments.size() == 5 && arguments[0] == "write") {
      if (arguments[1] == "bf16") {
        write<zero::Mixed<zero::bf16>>(arguments);
      } else if (arguments[1] == "fp16") {
        write<zero::Mixed<zero::fp16>>(arguments);
      } else {
        write<zero::Fp32>(arguments);
      }
      return 0;
    }
    if (arguments.size() == 3 && arguments[0] == "save") {
      save(arguments[1], std::stoi(arguments[2]));
      return 0;
    }
    if (arguments.size() == 2 && arguments[0] == "grid") {
      grid(arguments[1]);
      return 0;
    }
    if (arguments.size() == 2 && arguments[0] == "several") {
      several(arguments[1]);
      return 0;
    }
    if (arguments.size() == 2 && arguments[0] == "frozen") {
      frozen(arguments[1]);
      return 0;
    }
    if (arguments.size() == 2 && arguments[0] == "large") {
      large(arguments[1]);
      return 0;
    }
    if (arguments.size() == 2 && arguments[0] == "read") {
      read(arguments[1]);
      return 0;
    }
    std::fputs("see the head of model_program.cpp\n", stderr);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
