// GGUF: a model that three ranks write into one file, under Pos+g+p, and two ranks read.
//
// With a path, it writes the model there, or reads it and prints every value, or reads a base in
// 8 or 4 bits, which it holds frozen: a test holds all three against the format's own package.
// prints: 3 ranks wrote [1-9][0-9]+ bytes, 2 ranks read the same values

#include "gguf.hpp"

#include <cstdio>
#include <filesystem>
#include <string_view>

std::vector<zero::Tensor> const described{
    {.name = "token_embd.weight", .shape = {37, 5}},
    {.name = "blk.0.attn_qkv.weight", .shape = {3, 23, 89}, .unit = 1},
    {.name = "blk.0.scale", .shape = {}, .unit = 1},
    {.name = "output_norm.weight", .shape = {4097}, .unit = 2},
    {.name = "output.weight", .shape = {37, 5}, .unit = 2, .tied_to = "token_embd.weight"},
};

void initial(zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
  float const scale = static_cast<float>(tensor.name.size());
  for (float& value : out) value = scale + static_cast<float>(first++) / 1024.f;
}

void write(std::string const& path) {
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer opt{comm, described, zero::stage::PosGP{}, zero::Mixed<zero::bf16>{}};
    opt.load_parameters(initial);
    write_gguf(comm, opt, path);
  });
}

/// All values of the tensors that the file has.
std::vector<float> read(std::string const& path) {
  std::vector<float> values;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer opt{comm, described, zero::stage::PosG{}};
    load_gguf(opt, path);
    if (comm.rank() != 0) return;
    for (std::size_t t = 0; t < 4; ++t) {
      values.insert(values.end(), opt.parameter(t).begin(), opt.parameter(t).end());
    }
  });
  return values;
}

/// Three ranks hold a third each of a frozen base: matrices as the bytes that the file has, of
/// which a row is `row_bytes`, and norms in the type of parameters. Adapters are trained.
void read_base(std::string const& path, std::size_t row_bytes) {
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    std::vector<zero::Tensor> tensors;
    for (int unit = 0; unit < 2; ++unit) {
      std::string const block = "blk." + std::to_string(unit);
      tensors.push_back({.name = block + ".ffn_up.weight",
                         .shape = {96, row_bytes},
                         .unit = unit,
                         .dtype = zero::DType::u8,
                         .frozen = true});
      tensors.push_back(
          {.name = block + ".ffn_norm.weight", .shape = {256}, .unit = unit, .frozen = true});
    }
    tensors.push_back({.name = "adapter", .shape = {4, 256}, .unit = 1});
    zero::ShardedOptimizer opt{comm, tensors, zero::stage::PosGP{}, zero::Mixed<zero::fp16>{}};
    auto const bytes = load_gguf(opt, path, initial);
    auto const all = opt.full_parameters();
    if (comm.rank() != 0) return;
    std::printf("%ju\n", std::uintmax_t{bytes});
    for (std::size_t const t : {0u, 2u}) {
      for (int const byte : all.as<std::uint8_t>(t)) std::printf("%d\n", byte);
    }
    for (std::size_t const t : {1u, 3u}) {
      for (zero::fp16 const value : all[t]) std::printf("%.9g\n", double{float{value}});
    }
  });
}

int main(int count, char** arguments) {
  if (count == 3 && std::string_view(arguments[1]) == "write") {
    write(arguments[2]);
  } else if (count == 3) {
    for (float const value : read(arguments[2])) std::printf("%.9g\n", double{value});
  } else if (count == 4 && std::string_view(arguments[1]) == "base") {
    read_base(arguments[2], std::stoul(arguments[3]));
  } else {
    std::string const path =
        std::filesystem::temp_directory_path() / ("zero_" + std::to_string(getpid()) + ".gguf");
    write(path);
    std::vector<float> expected;
    for (std::size_t t = 0; t < 4; ++t) {
      std::vector<float> values(zero::element_count(described[t]));
      initial(described[t], 0, values);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    std::printf("3 ranks wrote %ju bytes, 2 ranks read %s values\n",
                std::uintmax_t{std::filesystem::file_size(path)},
                read(path) == expected ? "the same" : "other");
    std::filesystem::remove(path);
  }
}
