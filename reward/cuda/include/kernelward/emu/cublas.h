// The cuBLAS calls that kernels' host code makes, in double accumulation. Matrices are column-major, as in cuBLAS.
#pragma once
#include "kernelward/emu/api.h"
#include "kernelward/emu/half.h"

typedef struct cublasContext* cublasHandle_t;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3, CUBLAS_STATUS_INVALID_VALUE = 7,
                      CUBLAS_STATUS_ARCH_MISMATCH = 8, CUBLAS_STATUS_MAPPING_ERROR = 11, CUBLAS_STATUS_EXECUTION_FAILED = 13,
                      CUBLAS_STATUS_INTERNAL_ERROR = 14, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C };
enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER };
enum cublasSideMode_t { CUBLAS_SIDE_LEFT, CUBLAS_SIDE_RIGHT };
enum cublasDiagType_t { CUBLAS_DIAG_NON_UNIT, CUBLAS_DIAG_UNIT };
enum cublasMath_t { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_PEDANTIC_MATH = 2, CUBLAS_TF32_TENSOR_OP_MATH = 3 };
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 };
enum cublasComputeType_t { CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77, CUBLAS_COMPUTE_64F = 70 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_8I = 3, CUDA_R_16BF = 14 };
typedef cudaDataType_t cudaDataType;

inline cublasStatus_t cublasCreate(cublasHandle_t* h) { *h = reinterpret_cast<cublasHandle_t>(1); return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasCreate_v2(cublasHandle_t* h) { return cublasCreate(h); }
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetPointerMode(cublasHandle_t, cublasPointerMode_t) { return CUBLAS_STATUS_SUCCESS; }
inline const char* cublasGetStatusString(cublasStatus_t s) { return s ? "cuBLAS error" : "success"; }

namespace kw {
namespace emu {
template <class A, class B, class C, class S>
cublasStatus_t gemm(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, S alpha, const A* a, int lda, const B* b, int ldb, S beta, C* c, int ldc) {
  if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m || lda < 1 || ldb < 1 || ldc < 1) return CUBLAS_STATUS_INVALID_VALUE;
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      double sum = 0;
      for (int q = 0; q < k; q++) {
        A x = ta ? a[q + size_t(i) * lda] : a[i + size_t(q) * lda];
        B y = tb ? b[j + size_t(q) * ldb] : b[q + size_t(j) * ldb];
        sum += double(x) * double(y);
      }
      C& out = c[i + size_t(j) * ldc];
      out = C(S(alpha * S(sum)) + (beta == S(0) ? S(0) : beta * S(out)));
    }
  return CUBLAS_STATUS_SUCCESS;
}
template <class T> cublasStatus_t gemv(cublasOperation_t t, int m, int n, T alpha, const T* a, int lda, const T* x, int ix, T beta, T* y, int iy) {
  if (m < 0 || n < 0 || lda < m || lda < 1 || !ix || !iy) return CUBLAS_STATUS_INVALID_VALUE;
  int rows = t ? n : m, inner = t ? m : n;
  for (int i = 0; i < rows; i++) {
    double sum = 0;
    for (int q = 0; q < inner; q++) sum += double(t ? a[q + size_t(i) * lda] : a[i + size_t(q) * lda]) * double(x[q * ix]);
    y[i * iy] = T(alpha * T(sum)) + (beta == T(0) ? T(0) : beta * y[i * iy]);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t gemm_ex(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a, cudaDataType ka, int lda,
                       const void* b, cudaDataType kb, int ldb, const void* beta, void* c, cudaDataType kc, int ldc);
size_t data_size(cudaDataType k);
}  // namespace emu
}  // namespace kw

#define KW_GEMM(LETTER, T)                                                                                                       \
  inline cublasStatus_t cublas##LETTER##gemm(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha, const T* a, \
                                             int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {                       \
    return kw::emu::gemm(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##gemmStridedBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,             \
                                                           const T* alpha, const T* a, int lda, long long sa, const T* b, int ldb, long long sb,          \
                                                           const T* beta, T* c, int ldc, long long sc, int count) {              \
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;                                                                                    \
    for (int i = 0; i < count && !s; i++) s = cublas##LETTER##gemm(h, ta, tb, m, n, k, alpha, a + i * sa, lda, b + i * sb, ldb, beta, c + i * sc, ldc);    \
    return s;                                                                                                                    \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##gemmBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,    \
                                                    const T* const a[], int lda, const T* const b[], int ldb, const T* beta, T* const c[], int ldc,       \
                                                    int count) {                                                                 \
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;                                                                                    \
    for (int i = 0; i < count && !s; i++) s = cublas##LETTER##gemm(h, ta, tb, m, n, k, alpha, a[i], lda, b[i], ldb, beta, c[i], ldc);                      \
    return s;                                                                                                                    \
  }
KW_GEMM(S, float) KW_GEMM(D, double) KW_GEMM(H, __half)
#undef KW_GEMM
#define KW_BLAS(LETTER, AMAX, T)                                                                                                 \
  inline cublasStatus_t cublas##LETTER##gemv(cublasHandle_t, cublasOperation_t t, int m, int n, const T* alpha, const T* a, int lda, const T* x, int ix,  \
                                             const T* beta, T* y, int iy) {                                                      \
    return kw::emu::gemv(t, m, n, *alpha, a, lda, x, ix, *beta, y, iy);                                                          \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##ger(cublasHandle_t, int m, int n, const T* alpha, const T* x, int ix, const T* y, int iy, T* a, int lda) {        \
    for (int j = 0; j < n; j++) for (int i = 0; i < m; i++) a[i + size_t(j) * lda] += *alpha * x[i * ix] * y[j * iy];            \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##axpy(cublasHandle_t, int n, const T* alpha, const T* x, int ix, T* y, int iy) {          \
    for (int i = 0; i < n; i++) y[i * iy] += *alpha * x[i * ix];                                                                 \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##scal(cublasHandle_t, int n, const T* alpha, T* x, int ix) {                              \
    for (int i = 0; i < n; i++) x[i * ix] *= *alpha;                                                                             \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##copy(cublasHandle_t, int n, const T* x, int ix, T* y, int iy) {                          \
    for (int i = 0; i < n; i++) y[i * iy] = x[i * ix];                                                                           \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##dot(cublasHandle_t, int n, const T* x, int ix, const T* y, int iy, T* out) {             \
    double sum = 0;                                                                                                              \
    for (int i = 0; i < n; i++) sum += double(x[i * ix]) * double(y[i * iy]);                                                    \
    *out = T(sum);                                                                                                               \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##nrm2(cublasHandle_t, int n, const T* x, int ix, T* out) {                                \
    double sum = 0;                                                                                                              \
    for (int i = 0; i < n; i++) sum += double(x[i * ix]) * double(x[i * ix]);                                                    \
    *out = T(sqrt(sum));                                                                                                         \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##asum(cublasHandle_t, int n, const T* x, int ix, T* out) {                                \
    double sum = 0;                                                                                                              \
    for (int i = 0; i < n; i++) sum += double(std::abs(x[i * ix]));                                                              \
    *out = T(sum);                                                                                                               \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##geam(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, const T* alpha, const T* a, int lda, \
                                             const T* beta, const T* b, int ldb, T* c, int ldc) {                                \
    for (int j = 0; j < n; j++)                                                                                                  \
      for (int i = 0; i < m; i++)                                                                                                \
        c[i + size_t(j) * ldc] = *alpha * (ta ? a[j + size_t(i) * lda] : a[i + size_t(j) * lda]) +                               \
                                 (*beta == T(0) ? T(0) : *beta * (tb ? b[j + size_t(i) * ldb] : b[i + size_t(j) * ldb]));        \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }                                                                                                                              \
  inline cublasStatus_t cublas##LETTER##dgmm(cublasHandle_t, cublasSideMode_t side, int m, int n, const T* a, int lda, const T* x, int ix, T* c, int ldc) { \
    for (int j = 0; j < n; j++) for (int i = 0; i < m; i++) c[i + size_t(j) * ldc] = a[i + size_t(j) * lda] * x[(side == CUBLAS_SIDE_LEFT ? i : j) * ix];  \
    return CUBLAS_STATUS_SUCCESS;                                                                                                \
  }
KW_BLAS(S, Is, float) KW_BLAS(D, Id, double)
#undef KW_BLAS
inline cublasStatus_t cublasSsymm(cublasHandle_t, cublasSideMode_t side, cublasFillMode_t fill, int m, int n, const float* alpha, const float* a, int lda,
                                  const float* b, int ldb, const float* beta, float* c, int ldc) {
  auto at = [&](int i, int j) { bool stored = fill == CUBLAS_FILL_MODE_LOWER ? i >= j : i <= j; return stored ? a[i + size_t(j) * lda] : a[j + size_t(i) * lda]; };
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      double sum = 0;
      if (side == CUBLAS_SIDE_LEFT) for (int q = 0; q < m; q++) sum += double(at(i, q)) * b[q + size_t(j) * ldb];
      else for (int q = 0; q < n; q++) sum += double(b[i + size_t(q) * ldb]) * at(q, j);
      float& out = c[i + size_t(j) * ldc];
      out = *alpha * float(sum) + (*beta == 0 ? 0 : *beta * out);
    }
  return CUBLAS_STATUS_SUCCESS;
}
template <class C> cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a,
                                               cudaDataType ka, int lda, const void* b, cudaDataType kb, int ldb, const void* beta, void* c,
                                               cudaDataType kc, int ldc, C, cublasGemmAlgo_t) {
  return kw::emu::gemm_ex(ta, tb, m, n, k, alpha, a, ka, lda, b, kb, ldb, beta, c, kc, ldc);
}
template <class C> cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha,
                                                             const void* a, cudaDataType ka, int lda, long long sa, const void* b, cudaDataType kb, int ldb,
                                                             long long sb, const void* beta, void* c, cudaDataType kc, int ldc, long long sc, int count, C,
                                                             cublasGemmAlgo_t) {
  cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
  for (int i = 0; i < count && !s; i++)
    s = kw::emu::gemm_ex(ta, tb, m, n, k, alpha, static_cast<const char*>(a) + i * sa * (long long)kw::emu::data_size(ka), ka, lda,
                         static_cast<const char*>(b) + i * sb * (long long)kw::emu::data_size(kb), kb, ldb, beta,
                         static_cast<char*>(c) + i * sc * (long long)kw::emu::data_size(kc), kc, ldc);
  return s;
}
namespace at { namespace cuda {
inline cublasHandle_t getCurrentCUDABlasHandle() { return reinterpret_cast<cublasHandle_t>(1); }
} }
