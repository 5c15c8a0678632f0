/// @file
/// Products of matrices, by cuBLAS, with the same bits wherever the matrices lie.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/float16.hpp"
#include "zero/device/scope.hpp"
#include "zero/layout/placement.hpp"
#include "zero/space/cuda.hpp"

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace gpt {

/// c = op(a) op(b), or c += op(a) op(b), of whole row-major matrices, `batch` of each one after the
/// other.
struct Product {
  bool a_transposed = false;  ///< a is [k, m] in memory, else [m, k]
  bool b_transposed = false;  ///< b is [n, k], else [k, n]
  std::size_t m = 0;
  std::size_t n = 0;
  std::size_t k = 0;
  std::size_t batch = 1;
  bool adds = false;

  friend auto operator<=>(Product const&, Product const&) = default;
};

/// The products of one rank, in its stream.
///
/// cuBLAS chooses an algorithm by sizes, types, workspace and alignment. Here it is asked once for
/// each product, with the alignment that all tensors have, and what it chose is kept: a matrix in a
/// gathered slot and the same matrix in a whole store are multiplied alike. Sums are in fp32: no
/// algorithm may add parts that were rounded to 16 bits, and fp32 is never cut to TF32.
class Products {
 public:
  static constexpr std::size_t workspace_bytes = 32 * zero::MiB;
  /// Bytes that every matrix begins at a multiple of: what the library promises of a tensor.
  static constexpr std::uint32_t alignment = zero::tensor_alignment * sizeof(zero::bf16);

  /// @param workspace  `workspace_bytes` bytes of the device, of nobody else, at a multiple of 256
  Products(zero::space::Cuda space, void* workspace)
      : space_(std::move(space)), workspace_(workspace) {
    zero::device::Scope const scope(space_.device());
    cublasLtHandle_t handle = nullptr;
    check(cublasLtCreate(&handle), "cublasLtCreate");
    handle_.reset(handle);
  }

  /// Enqueues a product. The first of its kind asks cuBLAS for an algorithm.
  template <class T, class Out>
  void operator()(Product const& product, T const* a, T const* b, Out* c) {
    for (void const* const matrix :
         {static_cast<void const*>(a), static_cast<void const*>(b), static_cast<void const*>(c)}) {
      if (reinterpret_cast<std::uintptr_t>(matrix) % alignment != 0) {
        throw std::logic_error("gpt: a matrix is not aligned as the library aligns tensors");
      }
    }
    zero::device::Scope const scope(space_.device());
    constexpr auto key = std::pair(type_of<T>, type_of<Out>);
    auto found = plans_.find({product, key});
    if (found == plans_.end()) {
      found = plans_.emplace(std::pair(product, key), plan(product, key.first, key.second)).first;
    }
    Plan const& chosen = found->second;
    float const one = 1.f;
    float const before = product.adds ? 1.f : 0.f;
    // Row-major matrices are the transposes of column-major ones: cᵀ = op(b)ᵀ op(a)ᵀ.
    check(cublasLtMatmul(handle_.get(),
                         chosen.operation.get(),
                         &one,
                         b,
                         chosen.b.get(),
                         a,
                         chosen.a.get(),
                         &before,
                         c,
                         chosen.c.get(),
                         c,
                         chosen.c.get(),
                         &chosen.algorithm,
                         workspace_,
                         workspace_bytes,
                         space_.stream()),
          "cublasLtMatmul");
  }

 private:
  template <class T>
  static constexpr cudaDataType_t type_of = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16BF;

  template <auto destroy>
  struct Destroy {
    template <class P>
    void operator()(P* object) const noexcept {
      static_cast<void>(destroy(object));
    }
  };
  using Handle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, Destroy<cublasLtDestroy>>;
  using Operation = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>,
                                    Destroy<cublasLtMatmulDescDestroy>>;
  using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                                 Destroy<cublasLtMatrixLayoutDestroy>>;
  using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                     Destroy<cublasLtMatmulPreferenceDestroy>>;
  struct Plan {
    Operation operation;
    Layout a, b, c;
    cublasLtMatmulAlgo_t algorithm{};
  };

  static void check(cublasStatus_t status, char const* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw std::runtime_error(std::string(what) + " failed: " + cublasLtGetStatusString(status));
  }

  static Layout layout(cudaDataType_t type,
                       std::size_t rows,
                       std::size_t columns,
                       std::size_t batch) {
    // A row here is a column there.
    cublasLtMatrixLayout_t made = nullptr;
    check(
        cublasLtMatrixLayoutCreate(&made, type, columns, rows, static_cast<std::int64_t>(columns)),
        "cublasLtMatrixLayoutCreate");
    Layout result(made);
    auto const count = static_cast<std::int32_t>(batch);
    auto const stride = static_cast<std::int64_t>(rows * columns);
    check(cublasLtMatrixLayoutSetAttribute(
              made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
          "the number of matrices");
    check(cublasLtMatrixLayoutSetAttribute(
              made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)),
          "the distance between matrices");
    return result;
  }

  Plan plan(Product const& product, cudaDataType_t type, cudaDataType_t out) {
    auto const [a_transposed, b_transposed, m, n, k, batch, adds] = product;
    Plan result;
    cublasLtMatmulDesc_t operation = nullptr;
    check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    result.operation.reset(operation);
    auto const transpose = [&](cublasLtMatmulDescAttributes_t which, bool transposed) {
      cublasOperation_t const how = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
      check(cublasLtMatmulDescSetAttribute(operation, which, &how, sizeof(how)), "a transposition");
    };
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, b_transposed);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, a_transposed);
    result.a = a_transposed ? layout(type, k, m, batch) : layout(type, m, k, batch);
    result.b = b_transposed ? layout(type, n, k, batch) : layout(type, k, n, batch);
    result.c = layout(out, m, n, batch);

    cublasLtMatmulPreference_t wanted = nullptr;
    check(cublasLtMatmulPreferenceCreate(&wanted), "cublasLtMatmulPreferenceCreate");
    Preference const preference(wanted);
    auto const prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(wanted, which, &value, sizeof(value)),
            "a preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
    // Parts of a sum are added in fp32.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_.get(),
                                         operation,
                                         result.b.get(),
                                         result.a.get(),
                                         result.c.get(),
                                         result.c.get(),
                                         wanted,
                                         1,
                                         &best,
                                         &found),
          "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) {
      throw std::runtime_error("cuBLAS has no algorithm for a product of " + std::to_string(m) +
                               " x " + std::to_string(k) + " by " + std::to_string(n));
    }
    result.algorithm = best.algo;
    return result;
  }

  zero::space::Cuda space_;
  void* workspace_;
  Handle handle_;
  std::map<std::pair<Product, std::pair<cudaDataType_t, cudaDataType_t>>, Plan> plans_;
};

}  // namespace gpt
