#include "sha256.h"

#if defined(__x86_64__) && !defined(CUDNN_AOT_PORTABLE_SHA256)  // defined by tests
#define CUDNN_AOT_SHA_INSTRUCTIONS 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

namespace cudnn_aot {
namespace {

constexpr size_t kBlock = 64;  // bytes

constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

uint32_t Rotate(uint32_t x, int by) { return x >> by | x << (32 - by); }

void CompressPortably(const unsigned char* block, uint32_t state[8]) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    uint32_t word;
    std::memcpy(&word, block + 4 * i, sizeof word);
    w[i] = __builtin_bswap32(word);  // big endian on the little-endian machines that we serve on
  }
  for (int i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (Rotate(a, 7) ^ Rotate(a, 18) ^ a >> 3) + w[i - 7] +
           (Rotate(b, 17) ^ Rotate(b, 19) ^ b >> 10);
  }
  uint32_t v[8];
  std::memcpy(v, state, sizeof v);
  // The names rotate, not the values: round i finds its first variable at -i.
#pragma GCC unroll 64
  for (int i = 0; i < 64; ++i) {
    auto at = [&](int name) -> uint32_t& { return v[(name - i) & 7]; };
    uint32_t a = at(0), e = at(4);
    uint32_t first = at(7) + (Rotate(e, 6) ^ Rotate(e, 11) ^ Rotate(e, 25)) +
                     (at(6) ^ (e & (at(5) ^ at(6)))) + kRounds[i] + w[i];
    at(3) += first;
    at(7) = first + (Rotate(a, 2) ^ Rotate(a, 13) ^ Rotate(a, 22)) +
            ((a & at(1)) | (at(2) & (a | at(1))));
  }
  for (int i = 0; i < 8; ++i) state[i] += v[i];
}

#ifdef CUDNN_AOT_SHA_INSTRUCTIONS

bool HasShaInstructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kSha = 1u << 29;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0 &&
         __builtin_cpu_supports("sse4.1");
}

// The same with the processor's own instructions, some 5 times as fast. They take the state as
// {a, b, e, f} and {c, d, g, h}, highest first, and four rounds' words with their constants.
__attribute__((target("sha,sse4.1"))) void CompressInHardware(const unsigned char* data,
                                                              size_t blocks, uint32_t state[8]) {
  const __m128i kBigEndian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* halves = reinterpret_cast<__m128i*>(state);
  __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(halves), 0xB1);
  __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(halves + 1), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; blocks != 0; --blocks, data += kBlock) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    const auto* words = reinterpret_cast<const __m128i*>(data);
    __m128i w[4];  // the last 16 words
    for (int i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(_mm_loadu_si128(words + i), kBigEndian);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const auto* constants = reinterpret_cast<const __m128i*>(kRounds) + i;
      __m128i sum = _mm_add_epi32(w[i & 3], _mm_loadu_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
      if (i >= 12) continue;  // no round is left that would use further words
      __m128i seven_back = _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4);
      __m128i next = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
      w[i & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(next, seven_back), w[(i + 3) & 3]);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(halves, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(halves + 1, _mm_alignr_epi8(dchg, feba, 8));
}

#endif

void Compress(const unsigned char* data, size_t blocks, uint32_t state[8]) {
#ifdef CUDNN_AOT_SHA_INSTRUCTIONS
  static const bool has_instructions = HasShaInstructions();
  if (has_instructions) return CompressInHardware(data, blocks, state);
#endif
  for (; blocks != 0; --blocks, data += kBlock) CompressPortably(data, state);
}

}  // namespace

std::string Sha256Hex(std::string_view bytes) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t whole = bytes.size() / kBlock * kBlock;
  Compress(data, whole / kBlock, state);
  // The end: what is left, one bit, zeros, and the length in bits.
  unsigned char tail[2 * kBlock] = {};
  size_t left = bytes.size() - whole;
  if (left != 0) std::memcpy(tail, data + whole, left);
  tail[left] = 0x80;
  size_t size = left + 9 <= kBlock ? kBlock : 2 * kBlock;
  uint64_t bits = __builtin_bswap64(static_cast<uint64_t>(bytes.size()) * 8);
  std::memcpy(tail + size - sizeof bits, &bits, sizeof bits);
  Compress(tail, size / kBlock, state);
  std::string out;
  out.reserve(64);
  for (uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[word >> shift & 15];
  }
  return out;
}

}  // namespace cudnn_aot
