// Vectors of 32-bit lanes, 16 with AVX-512 and 8 with AVX2: one spelling for both.
//
// Every operation is an intrinsic and contraction is off (compiler.py), so that a row's arithmetic does not depend on
// which instance of a template computed it.
#pragma once

#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define NIGHTMILL_AVX512 1
#else
#define NIGHTMILL_AVX512 0
#endif

namespace nightmill {

#if NIGHTMILL_AVX512

constexpr int LANES = 16;
using Floats = __m512;
using Words = __m512i;

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats reciprocal(Floats a) { return _mm512_rcp14_ps(a); }  // to 14 bits, 12 with AVX2
inline Floats magnitude(Floats a) { return _mm512_abs_ps(a); }
inline Floats round(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline float sum(Floats a) { return _mm512_reduce_add_ps(a); }
inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }
// x * 2^n for whole n; 0 where that is too small for a float.
inline Floats scale_by_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
// x in the first `count` lanes and `other` in the rest.
inline Floats keep(Floats x, int count, float other) {
  if (count >= LANES) return x;
  return _mm512_mask_mov_ps(all(other), count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1), x);
}

// x in the lanes whose bits are set and `other` in the rest.
inline Floats keep_bits(Floats x, uint32_t bits, float other) {
  return _mm512_mask_mov_ps(all(other), static_cast<__mmask16>(bits), x);
}

inline Words load_words(const void* p) { return _mm512_loadu_si512(p); }
inline void store_words(void* p, Words x) { _mm512_storeu_si512(p, x); }
inline Words zero_words() { return _mm512_setzero_si512(); }
inline Words all_words(int32_t x) { return _mm512_set1_epi32(x); }
inline Words add_words(Words a, Words b) { return _mm512_add_epi32(a, b); }
inline Words sub_words(Words a, Words b) { return _mm512_sub_epi32(a, b); }
inline Words and_words(Words a, Words b) { return _mm512_and_si512(a, b); }
inline Words or_words(Words a, Words b) { return _mm512_or_si512(a, b); }
template <int COUNT> Words shift_left(Words a) { return _mm512_slli_epi32(a, COUNT); }
template <int COUNT> Words shift_right(Words a) { return _mm512_srli_epi32(a, COUNT); }
template <int COUNT> Words shift_left_pairs(Words a) { return _mm512_slli_epi16(a, COUNT); }
template <int COUNT> Words shift_right_pairs(Words a) { return _mm512_srai_epi16(a, COUNT); }
inline Words dot_pairs(Words a, Words b) { return _mm512_madd_epi16(a, b); }
inline int32_t sum_words(Words a) { return _mm512_reduce_add_epi32(a); }
// Lane by lane: where x is greater than `most`, it takes its place, and `number` that of `where`.
inline void take_greater(Floats x, Words number, Floats& most, Words& where) {
  const __mmask16 greater = _mm512_cmp_ps_mask(x, most, _CMP_GT_OQ);
  most = _mm512_mask_mov_ps(most, greater, x);
  where = _mm512_mask_mov_epi32(where, greater, number);
}
inline Words to_words(Floats a) { return _mm512_cvtps_epi32(a); }  // to the nearest, halves to even
inline Floats to_floats(Words a) { return _mm512_cvtepi32_ps(a); }
inline Words bits(Floats a) { return _mm512_castps_si512(a); }
inline Floats as_floats(Words a) { return _mm512_castsi512_ps(a); }
// The low byte, or the low half, of each lane, one after the other.
inline void store_bytes(void* p, Words a) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a)); }
inline void store_halves(void* p, Words a) { _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a)); }
// A byte, or an fp16, for every lane.
inline Words widen_bytes(const void* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
inline Floats load_half_floats(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
#if defined(__AVX512VBMI__)
#define NIGHTMILL_VBMI 1
// The low byte of each lane of four vectors, one after the other.
inline void store_bytes(void* p, Words a, Words b, Words c, Words d) {
  alignas(64) static constexpr auto PLACES = [] {
    std::array<uint8_t, 64> places{};
    for (size_t i = 0; i < 64; i++) places[i] = static_cast<uint8_t>(i % 32 * 4);
    return places;
  }();
  const Words places = load_words(PLACES.data());
  const Words low = _mm512_permutex2var_epi8(a, places, b), high = _mm512_permutex2var_epi8(c, places, d);
  store_words(p, _mm512_mask_mov_epi64(low, 0xf0, high));
}
// The second lowest byte of each lane of a, then of b, to `high`, and the lowest to `low`.
inline void store_two_bytes(void* high, void* low, Words a, Words b) {
  alignas(64) static constexpr auto PLACES = [] {
    std::array<uint8_t, 64> places{};
    for (size_t i = 0; i < 64; i++) places[i] = static_cast<uint8_t>(i % 32 * 4 + (i < 32));
    return places;
  }();
  const Words both = _mm512_permutex2var_epi8(a, load_words(PLACES.data()), b);
  _mm256_storeu_si256(static_cast<__m256i*>(high), _mm512_castsi512_si256(both));
  _mm256_storeu_si256(static_cast<__m256i*>(low), _mm512_extracti64x4_epi64(both, 1));
}
#endif

#else

constexpr int LANES = 8;
using Floats = __m256;
using Words = __m256i;

inline Floats zeros() { return _mm256_setzero_ps(); }
inline Floats all(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats reciprocal(Floats a) { return _mm256_rcp_ps(a); }
inline Floats magnitude(Floats a) { return _mm256_andnot_ps(all(-0.0f), a); }
inline Floats round(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline __m128 halves_of(Floats a, bool high) { return high ? _mm256_extractf128_ps(a, 1) : _mm256_castps256_ps128(a); }
inline float sum(Floats a) {
  __m128 x = _mm_add_ps(halves_of(a, false), halves_of(a, true));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float largest(Floats a) {
  __m128 x = _mm_max_ps(halves_of(a, false), halves_of(a, true));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
inline Floats keep(Floats x, int count, float other) {
  if (count >= LANES) return x;
  const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(all(other), x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), place)));
}

inline Floats keep_bits(Floats x, uint32_t bits, float other) {
  const __m256i place = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(bits)), place), place);
  return _mm256_blendv_ps(all(other), x, _mm256_castsi256_ps(set));
}

inline Words load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_words(void* p, Words x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline Words zero_words() { return _mm256_setzero_si256(); }
inline Words all_words(int32_t x) { return _mm256_set1_epi32(x); }
inline Words add_words(Words a, Words b) { return _mm256_add_epi32(a, b); }
inline Words sub_words(Words a, Words b) { return _mm256_sub_epi32(a, b); }
inline Words and_words(Words a, Words b) { return _mm256_and_si256(a, b); }
inline Words or_words(Words a, Words b) { return _mm256_or_si256(a, b); }
template <int COUNT> Words shift_left(Words a) { return _mm256_slli_epi32(a, COUNT); }
template <int COUNT> Words shift_right(Words a) { return _mm256_srli_epi32(a, COUNT); }
template <int COUNT> Words shift_left_pairs(Words a) { return _mm256_slli_epi16(a, COUNT); }
template <int COUNT> Words shift_right_pairs(Words a) { return _mm256_srai_epi16(a, COUNT); }
inline Words dot_pairs(Words a, Words b) { return _mm256_madd_epi16(a, b); }
inline int32_t sum_words(Words a) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
inline void take_greater(Floats x, Words number, Floats& most, Words& where) {
  const __m256 greater = _mm256_cmp_ps(x, most, _CMP_GT_OQ);
  most = _mm256_blendv_ps(most, x, greater);
  where = _mm256_blendv_epi8(where, number, _mm256_castps_si256(greater));
}
inline Words widen_bytes(const void* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }
#ifdef __F16C__
inline Floats load_half_floats(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
#endif
inline Words to_words(Floats a) { return _mm256_cvtps_epi32(a); }
inline Floats to_floats(Words a) { return _mm256_cvtepi32_ps(a); }
inline Words bits(Floats a) { return _mm256_castps_si256(a); }
inline Floats as_floats(Words a) { return _mm256_castsi256_ps(a); }
inline Floats scale_by_power(Floats x, Floats n) {
  const Floats scaled = mul(x, as_floats(shift_left<23>(add_words(to_words(n), all_words(127)))));
  return _mm256_and_ps(scaled, _mm256_cmp_ps(n, all(-126.0f), _CMP_GT_OQ));
}
inline __m128i gather_low(Words a, __m256i places) {
  const __m256i within = _mm256_shuffle_epi8(a, places);
  return _mm_or_si128(_mm256_castsi256_si128(within), _mm256_extracti128_si256(within, 1));
}
inline void store_bytes(void* p, Words a) {
  const __m256i places = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  _mm_storel_epi64(static_cast<__m128i*>(p), gather_low(a, places));
}
inline void store_halves(void* p, Words a) {
  const __m256i places = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8, 9, 12, 13);
  _mm_storeu_si128(static_cast<__m128i*>(p), gather_low(a, places));
}

#endif

#if !defined(NIGHTMILL_VBMI)
inline void store_bytes(void* p, Words a, Words b, Words c, Words d) {
  const Words each[] = {a, b, c, d};
  for (int i = 0; i < 4; i++) store_bytes(static_cast<char*>(p) + i * LANES, each[i]);
}
inline void store_two_bytes(void* high, void* low, Words a, Words b) {
  store_bytes(high, shift_right<8>(a));
  store_bytes(static_cast<char*>(high) + LANES, shift_right<8>(b));
  store_bytes(low, a);
  store_bytes(static_cast<char*>(low) + LANES, b);
}
#endif

inline Words broadcast(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return all_words(word);
}

// e^x to about 1 ulp for x <= 88; 0 below -103. Range reduction and polynomial of Cephes' expf.
inline Floats exponential(Floats x) {
  x = max(x, all(-104.0f));
  const Floats n = round(mul(x, all(1.44269504088896341f)));
  Floats r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  Floats y = all(1.9875691500e-4f);
  y = fma(y, r, all(1.3981999507e-3f));
  y = fma(y, r, all(8.3334519073e-3f));
  y = fma(y, r, all(4.1665795894e-2f));
  y = fma(y, r, all(1.6666665459e-1f));
  y = fma(y, r, all(5.0000001201e-1f));
  y = fma(mul(y, r), r, add(r, all(1.0f)));
  return scale_by_power(y, n);
}

// 2^x to 1.1e-4 for x <= 126, exact at 0, 0 far below: for what is multiplied with 8-bit numbers anyway. The polynomial
// is the minimax one of the relative error over [-1/2, 1/2] among those that are 1 at 0.
inline Floats quick_power_of_two(Floats x) {
  const Floats n = round(x);
  const Floats r = sub(x, n);
  Floats y = fma(all(5.500885e-02f), r, all(2.4221095e-01f));
  y = fma(y, r, all(6.9328293e-01f));
  y = fma(y, r, all(1.0f));
  return scale_by_power(y, n);
}

constexpr float LOG2_E = 1.44269504088896341f;

inline Floats quick_silu(Floats x) {
  const Floats limited = max(mul(x, all(-LOG2_E)), all(-126.0f));
  const Floats below = add(all(1.0f), quick_power_of_two(min(limited, all(126.0f))));
  return mul(x, reciprocal(below));
}

inline Floats silu(Floats x) { return divide(x, add(all(1.0f), exponential(sub(zeros(), max(x, all(-87.0f)))))); }

// The nearest bf16 of each lane, in its low half. For finite numbers.
inline Words to_bf16(Floats x) {
  const Words b = bits(x);
  const Words odd = and_words(shift_right<16>(b), all_words(1));
  return shift_right<16>(add_words(b, add_words(odd, all_words(0x7fff))));
}

inline float from_bf16(uint16_t x) {
  const uint32_t b = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &b, sizeof f);
  return f;
}

inline int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace nightmill
