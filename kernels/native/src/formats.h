// The number formats of a matrix product. In each, a 32-bit word holds GROUP neighbouring elements of a row's K
// dimension, and dot() adds, lane by lane, the products of the elements of two words to an accumulator.
#pragma once

#include "simd.h"

namespace nightmill {

enum class Format : int32_t { FP32 = 0, BF16 = 1, INT8 = 2 };

struct Fp32 {
  static constexpr Format FORMAT = Format::FP32;
  static constexpr int GROUP = 1;
  static constexpr int MOST_ROWS = NIGHTMILL_AVX512 ? 14 : 6;  // of a tile of accumulators, two vectors wide
  using Element = float;
  using Sum = Floats;
  static Sum begin(const int32_t*, int) { return zeros(); }
  static Words right(Words w) { return w; }
  static Words left(Words a) { return a; }
  static Sum dot(Sum c, Words w, Words a) { return fma(as_floats(w), as_floats(a), c); }
  static void put(void* p, Sum c) { store(static_cast<float*>(p), c); }
};

#if NIGHTMILL_AVX512 && defined(__AVX512BF16__)

struct Bf16 {
  static constexpr Format FORMAT = Format::BF16;
  static constexpr int GROUP = 2;
  static constexpr int MOST_ROWS = 14;
  using Element = uint16_t;
  using Sum = Floats;
  static Sum begin(const int32_t*, int) { return zeros(); }
  static Words right(Words w) { return w; }
  static Words left(Words a) { return a; }
  static Sum dot(Sum c, Words w, Words a) { return _mm512_dpbf16_ps(c, (__m512bh)w, (__m512bh)a); }
  static void put(void* p, Sum c) { store(static_cast<float*>(p), c); }
};

#else

struct Bf16 {
  static constexpr Format FORMAT = Format::BF16;
  static constexpr int GROUP = 2;
  static constexpr int MOST_ROWS = NIGHTMILL_AVX512 ? 10 : 4;
  using Element = uint16_t;
  using Sum = Floats;
  struct Pair {
    Floats low, high;
  };
  static Sum begin(const int32_t*, int) { return zeros(); }
  static Pair split(Words x) {
    return {as_floats(shift_left<16>(x)), as_floats(and_words(x, all_words(static_cast<int32_t>(0xffff0000u))))};
  }
  static Pair right(Words w) { return split(w); }
  static Pair left(Words a) { return split(a); }
  static Sum dot(Sum c, Pair w, Pair a) { return fma(w.high, a.high, fma(w.low, a.low, c)); }
  static void put(void* p, Sum c) { store(static_cast<float*>(p), c); }
};

#endif

// Int8 multiplies signed rows with packed weights; Unsigned8 unsigned rows with signed packed values.
#if NIGHTMILL_AVX512 && defined(__AVX512VNNI__)

// The instruction wants one unsigned operand: the packed side is stored with 128 added, which the row's sum takes out.
constexpr int PACKED_OFFSET = 128;

struct Int8 {
  static constexpr Format FORMAT = Format::INT8;
  static constexpr int GROUP = 4;
  static constexpr int MOST_ROWS = 14;
  using Element = int8_t;
  using Sum = Words;
  static Sum begin(const int32_t* starts, int r) { return starts != nullptr ? broadcast(starts + r) : zero_words(); }
  static Words right(Words w) { return w; }
  static Words left(Words a) { return a; }
  static Sum dot(Sum c, Words w, Words a) { return _mm512_dpbusd_epi32(c, w, a); }
  static void put(void* p, Sum c) { store_words(p, c); }
};

struct Unsigned8 : Int8 {
  static Sum dot(Sum c, Words w, Words a) { return _mm512_dpbusd_epi32(c, a, w); }
};

#elif !NIGHTMILL_AVX512 && defined(__AVXVNNI__)

constexpr int PACKED_OFFSET = 128;

struct Int8 {
  static constexpr Format FORMAT = Format::INT8;
  static constexpr int GROUP = 4;
  static constexpr int MOST_ROWS = 6;
  using Element = int8_t;
  using Sum = Words;
  static Sum begin(const int32_t* starts, int r) { return starts != nullptr ? broadcast(starts + r) : zero_words(); }
  static Words right(Words w) { return w; }
  static Words left(Words a) { return a; }
  static Sum dot(Sum c, Words w, Words a) { return _mm256_dpbusd_avx_epi32(c, w, a); }
  static void put(void* p, Sum c) { store_words(p, c); }
};

struct Unsigned8 : Int8 {
  static Sum dot(Sum c, Words w, Words a) { return _mm256_dpbusd_avx_epi32(c, a, w); }
};

#else

// Without the instruction: even and odd bytes, widened to 16 bits, in two exact products of pairs.
constexpr int PACKED_OFFSET = 0;

struct Int8 {
  static constexpr Format FORMAT = Format::INT8;
  static constexpr int GROUP = 4;
  static constexpr int MOST_ROWS = NIGHTMILL_AVX512 ? 10 : 4;
  using Element = int8_t;
  using Sum = Words;
  struct Pair {
    Words even, odd;
  };
  static Sum begin(const int32_t* starts, int r) { return starts != nullptr ? broadcast(starts + r) : zero_words(); }
  static Pair right(Words w) { return {shift_right_pairs<8>(shift_left_pairs<8>(w)), shift_right_pairs<8>(w)}; }
  static Pair left(Words a) { return right(a); }
  static Sum dot(Sum c, Pair w, Pair a) {
    return add_words(c, add_words(dot_pairs(w.even, a.even), dot_pairs(w.odd, a.odd)));
  }
  static void put(void* p, Sum c) { store_words(p, c); }
};

struct Unsigned8 : Int8 {
  static Pair left(Words a) {
    const Words low = all_words(0x00ff00ff);
    return {and_words(a, low), and_words(shift_right<8>(a), low)};
  }
};

#endif

}  // namespace nightmill
