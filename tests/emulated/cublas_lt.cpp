// Products of matrices in cuBLAS's place. Stricter where that is possible: an algorithm refuses
// matrices that are less aligned than it was asked for, overwrites the workspace, and, where nobody
// has chosen it, follows from the addresses, down to the order in which it adds.
#include "emulated/state.hpp"
#include "support/standard.hpp"
#include "zero/base/float16.hpp"

#include <cublasLt.h>
#include <cuda_runtime.h>

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t a = CUBLAS_OP_N;
  cublasOperation_t b = CUBLAS_OP_N;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t leading;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::uint32_t alignments[4] = {256, 256, 256, 256};  // of A, B, C and D
};

namespace {

constexpr std::uint64_t needed_workspace = 1024;

/// Column-major, as cuBLAS sees them.
class Matrix {
 public:
  Matrix(void const* memory, cublasLtMatrixLayoutOpaque_t const& layout, bool transposed = false)
      : memory_(static_cast<std::byte*>(const_cast<void*>(memory))),
        layout_(layout),
        transposed_(transposed) {}

  [[nodiscard]] std::uint64_t rows() const { return transposed_ ? layout_.columns : layout_.rows; }
  [[nodiscard]] std::uint64_t columns() const {
    return transposed_ ? layout_.rows : layout_.columns;
  }
  [[nodiscard]] float get(std::int32_t batch, std::uint64_t row, std::uint64_t column) const {
    std::byte const* const at = place(batch, row, column);
    if (layout_.type == CUDA_R_32F) return *reinterpret_cast<float const*>(at);
    return static_cast<float>(*reinterpret_cast<zero::bf16 const*>(at));
  }
  void set(std::int32_t batch, std::uint64_t row, std::uint64_t column, float value) const {
    std::byte* const at = place(batch, row, column);
    if (layout_.type == CUDA_R_32F) {
      *reinterpret_cast<float*>(at) = value;
    } else {
      *reinterpret_cast<zero::bf16*>(at) = zero::bf16(value);
    }
  }

 private:
  [[nodiscard]] std::byte* place(std::int32_t batch,
                                 std::uint64_t row,
                                 std::uint64_t column) const {
    if (transposed_) std::swap(row, column);
    std::uint64_t const element = static_cast<std::uint64_t>(batch * layout_.stride) +
                                  column * static_cast<std::uint64_t>(layout_.leading) + row;
    return memory_ + element * (layout_.type == CUDA_R_32F ? 4 : 2);
  }

  std::byte* memory_;
  cublasLtMatrixLayoutOpaque_t layout_;
  bool transposed_;
};

template <class T>
cublasStatus_t create(T** object, T const& value) {
  *object = new T(value);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t assign(T& to, void const* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

char const* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_INVALID_VALUE: return "a wrong value";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the device has failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "this algorithm cannot do that";
  }
  return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return create(handle, cublasLtContext{});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  return create(operation, cublasLtMatmulDescOpaque_t{});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return destroy(operation);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              void const* value,
                                              std::size_t bytes) {
  return assign(
      attribute == CUBLASLT_MATMUL_DESC_TRANSA ? operation->a : operation->b, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                          cudaDataType_t type,
                                          std::uint64_t rows,
                                          std::uint64_t columns,
                                          std::int64_t leading) {
  if (leading < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  return create(layout,
                cublasLtMatrixLayoutOpaque_t{
                    .type = type, .rows = rows, .columns = columns, .leading = leading});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                void const* value,
                                                std::size_t bytes) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return assign(layout->batch, value, bytes);
  return assign(layout->stride, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, cublasLtMatmulPreferenceOpaque_t{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    void const* value,
                                                    std::size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    return assign(preference->workspace, value, bytes);
  }
  std::uint32_t scheme = 0;
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return assign(scheme, value, bytes);
  int const matrix = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  return assign(preference->alignments[matrix], value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t /*operation*/,
                                              cublasLtMatrixLayout_t /*a*/,
                                              cublasLtMatrixLayout_t /*b*/,
                                              cublasLtMatrixLayout_t /*c*/,
                                              cublasLtMatrixLayout_t /*d*/,
                                              cublasLtMatmulPreference_t preference,
                                              int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = most > 0 && preference->workspace >= needed_workspace ? 1 : 0;
  if (*found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  *results = {.algo = {}, .workspaceSize = needed_workspace, .state = CUBLAS_STATUS_SUCCESS};
  std::copy_n(preference->alignments, 4, results->algo.data);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/,
                              cublasLtMatmulDesc_t operation,
                              void const* alpha,
                              void const* a,
                              cublasLtMatrixLayout_t a_layout,
                              void const* b,
                              cublasLtMatrixLayout_t b_layout,
                              void const* beta,
                              void const* c,
                              cublasLtMatrixLayout_t c_layout,
                              void* d,
                              cublasLtMatrixLayout_t d_layout,
                              cublasLtMatmulAlgo_t const* algorithm,
                              void* workspace,
                              std::size_t workspace_bytes,
                              cudaStream_t stream) {
  auto const address = [](void const* memory) { return reinterpret_cast<std::uintptr_t>(memory); };
  Matrix const left(a, *a_layout, operation->a == CUBLAS_OP_T);
  Matrix const right(b, *b_layout, operation->b == CUBLAS_OP_T);
  Matrix const before(c, *c_layout);
  Matrix const out(d, *d_layout);
  bool const fit = left.columns() == right.rows() && left.rows() == out.rows() &&
                   right.columns() == out.columns() && before.rows() == out.rows() &&
                   before.columns() == out.columns() && a_layout->batch == d_layout->batch &&
                   b_layout->batch == d_layout->batch && c_layout->batch == d_layout->batch;
  if (!fit || address(workspace) % 256 != 0 || workspace_bytes < needed_workspace) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  bool backwards = false;
  if (algorithm == nullptr) {
    backwards = std::popcount((address(a) ^ address(b) ^ address(d)) / 64) % 2 != 0;
  } else {
    void const* const matrices[] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
      if (address(matrices[i]) % algorithm->data[i] != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  }
  cudaLaunchConfig_t config{};
  config.stream = stream;
  cudaError_t const status = emulated::launch(
      config,
      [=,
       batch = d_layout->batch,
       more = *static_cast<float const*>(alpha),
       kept = *static_cast<float const*>(beta)] {
        std::memset(workspace, 0xff, needed_workspace);
        std::uint64_t const depth = left.columns();
        for (std::int32_t i = 0; i < batch; ++i) {
          for (std::uint64_t column = 0; column < out.columns(); ++column) {
            for (std::uint64_t row = 0; row < out.rows(); ++row) {
              float sum = 0.f;
              for (std::uint64_t step = 0; step < depth; ++step) {
                std::uint64_t const k = backwards ? depth - 1 - step : step;
                sum += left.get(i, row, k) * right.get(i, k, column);
              }
              // What is there is not read if nothing of it is kept.
              float const rest = kept == 0.f ? 0.f : kept * before.get(i, row, column);
              out.set(i, row, column, more * sum + rest);
            }
          }
        }
      });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
