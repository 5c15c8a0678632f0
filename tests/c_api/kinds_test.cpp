/// Tensors of several types through the C interface.
#include "support/test.hpp"
#include "zero/c.h"

namespace c_kinds_test {
namespace {

std::int32_t fill(std::int32_t tensor, std::int64_t, std::int64_t count, float* values, void*) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(tensor + 1);
  return tensor == 2 ? 1 : 0;  // bytes are not asked for here
}
std::int32_t fill_bytes(
    std::int32_t tensor, std::int64_t first, std::int64_t count, std::uint8_t* bytes, void*) {
  for (std::int64_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(7 * (first + i));
  return tensor == 2 ? 0 : 1;
}
std::int32_t count_bytes(zero_owned const* owned, void* user) {
  *static_cast<std::int64_t*>(user) += owned->count * owned->element_bytes;
  return 0;
}

}  // namespace

TEST_CASE("C API: tensors of two precisions, and frozen bytes") {
  zero_comm* comm = nullptr;
  REQUIRE(zero_self(&comm, nullptr, 0) == ZERO_OK);
  std::int64_t const shape[] = {5};
  zero_tensor model[] = {zero_tensor_of("w", 0, 1, shape),
                         zero_tensor_of("n", 0, 1, shape),
                         zero_tensor_of("base", 0, 1, shape)};
  model[1].dtype = ZERO_DTYPE_F32;
  model[2].dtype = ZERO_DTYPE_U8;
  model[2].flags = ZERO_FROZEN;
  zero_options options = zero_options_of(ZERO_POS_G, ZERO_BF16, ZERO_ADAMW);
  options.others = 1;
  options.other_precisions[0] = ZERO_FP32;
  zero_optimizer* optimizer = nullptr;
  REQUIRE(zero_create(comm, &options, model, 3, &optimizer) == ZERO_OK);
  CHECK(zero_load(optimizer, fill, nullptr) == ZERO_OK);
  CHECK(zero_load_bytes(optimizer, fill_bytes, nullptr) == ZERO_OK);
  void const* data[3] = {};
  REQUIRE(zero_parameters(optimizer, 0, data, 3) == ZERO_OK);
  CHECK(static_cast<float const*>(data[1])[4] == 2.f);
  CHECK(static_cast<std::uint8_t const*>(data[2])[4] == 28);
  CHECK(zero_release(optimizer, 0) == ZERO_OK);
  void* gradients[3] = {};
  REQUIRE(zero_gradients(optimizer, 0, ZERO_ADD, gradients, 3) == ZERO_OK);
  CHECK(gradients[2] == nullptr);
  for (int i = 0; i < 5; ++i) static_cast<float*>(gradients[1])[i] = 3.f;
  CHECK(zero_reduce(optimizer, 0) == ZERO_OK);
  zero_report report = zero_report_of();
  CHECK(zero_step(optimizer, nullptr, &report) == ZERO_OK);
  CHECK(report.grad_norm == std::sqrt(45.));
  // Masters and two states of ten elements.
  std::int64_t bytes = 0;
  CHECK(zero_visit_owned(optimizer, count_bytes, &bytes) == ZERO_OK);
  CHECK(bytes == 3 * 4 * 10);
  CHECK(zero_comm_close(comm, nullptr, 0) == ZERO_OK);
}

TEST_CASE("C API: a step before bytes have come is refused") {
  zero_comm* comm = nullptr;
  REQUIRE(zero_self(&comm, nullptr, 0) == ZERO_OK);
  std::int64_t const shape[] = {5};
  zero_tensor model[] = {zero_tensor_of("w", 0, 1, shape), zero_tensor_of("base", 0, 1, shape)};
  model[1].dtype = ZERO_DTYPE_U8;
  model[1].flags = ZERO_FROZEN;
  zero_options const options = zero_options_of(ZERO_POS_G, ZERO_BF16, ZERO_ADAMW);
  zero_optimizer* optimizer = nullptr;
  REQUIRE(zero_create(comm, &options, model, 2, &optimizer) == ZERO_OK);
  CHECK(zero_load(optimizer, fill, nullptr) == ZERO_OK);
  CHECK(zero_gradients(optimizer, 0, ZERO_ADD, nullptr, 0) == ZERO_OK);
  CHECK(zero_reduce(optimizer, 0) == ZERO_OK);
  CHECK(zero_step(optimizer, nullptr, nullptr) == ZERO_INVALID_ARGUMENT);
  CHECK(std::string(zero_message(comm)).find("tensor 'base' has no values on 1 of 1 rank") !=
        std::string::npos);
  CHECK(zero_comm_close(comm, nullptr, 0) == ZERO_OK);
}

}  // namespace c_kinds_test
