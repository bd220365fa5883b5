#include "exec/limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "core/decimal.h"
#include "core/json.h"
#include "core/os.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mlcb {
namespace {

// Far more than the caches that the threads of one engine can fill.
constexpr size_t kReadBytes = size_t{256} << 20;
constexpr int kReadRuns = 20;
// Many short runs: one that nothing disturbed is enough.
constexpr int kPeakRuns = 40;
constexpr double kPeakSeconds = 0.003;  // of one run

// A loop of independent multiply-adds in registers. `instructions` is the CPU flag that it needs.
struct PeakLoop {
  const char* instructions;
  bool int8;
  double ops;  // of one round
  void (*run)(int64_t rounds);
};

// Makes a loop's result look used, so that the loop stays.
void use_result(int value) { __asm__ volatile("" : : "r"(value)); }

#if defined(__x86_64__)

constexpr int kSums = 12;  // chains in flight: more than latency times units
// Makes a loop-invariant operand look changed, so that no round is computed ahead of the loop.
#define MLCB_OPAQUE(value) __asm__ volatile("" : "+v"(value))
// The other loops' registers; without AVX-512 the constraint above would mean the same.
#define MLCB_OPAQUE_YMM(value) __asm__ volatile("" : "+x"(value))

__attribute__((target("avx2,fma"))) void float_avx2(int64_t rounds) {
  __m256 sums[kSums] = {}, a = _mm256_set1_ps(1e-9f), b = a;
  for (int64_t round = 0; round < rounds; ++round) {
    MLCB_OPAQUE_YMM(a);
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = _mm256_fmadd_ps(a, b, sums[i]);
  }
  __m256 total = a;
  for (const __m256& sum : sums) total = _mm256_add_ps(total, sum);
  use_result(_mm256_movemask_ps(total));
}

__attribute__((target("avx512f"))) void float_avx512(int64_t rounds) {
  __m512 sums[kSums] = {}, a = _mm512_set1_ps(1e-9f), b = a;
  for (int64_t round = 0; round < rounds; ++round) {
    MLCB_OPAQUE(a);
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_fmadd_ps(a, b, sums[i]);
  }
  __m512 total = a;
  for (const __m512& sum : sums) total = _mm512_add_ps(total, sum);
  use_result(static_cast<int>(_mm512_reduce_add_ps(total)));
}

// As the kernels without a dot product instruction do it: sums of 16 bits, widened every 8 steps.
__attribute__((target("avx2"))) void int8_avx2(int64_t rounds) {
  constexpr int kNarrow = 4, kSteps = 8;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i wide[kNarrow] = {}, a = _mm256_set1_epi8(1), b = a;
  for (int64_t round = 0; round < rounds; ++round) {
    __m256i sums[kNarrow] = {};
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 4
      for (int i = 0; i < kNarrow; ++i) {
        MLCB_OPAQUE_YMM(a);
        sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(a, b));
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kNarrow; ++i) {
      wide[i] = _mm256_add_epi32(wide[i], _mm256_madd_epi16(sums[i], ones));
    }
  }
  __m256i total = a;
  for (const __m256i& sum : wide) total = _mm256_add_epi32(total, sum);
  use_result(_mm256_extract_epi32(total, 0));
}

__attribute__((target("avx2,avxvnni"))) void int8_avxvnni(int64_t rounds) {
  __m256i sums[kSums] = {}, a = _mm256_set1_epi8(1), b = a;
  for (int64_t round = 0; round < rounds; ++round) {
    MLCB_OPAQUE_YMM(a);
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = _mm256_dpbusd_avx_epi32(sums[i], a, b);
  }
  __m256i total = a;
  for (const __m256i& sum : sums) total = _mm256_add_epi32(total, sum);
  use_result(_mm256_extract_epi32(total, 0));
}

__attribute__((target("avx512f,avx512vnni"))) void int8_avx512vnni(int64_t rounds) {
  __m512i sums[kSums] = {}, a = _mm512_set1_epi8(1), b = a;
  for (int64_t round = 0; round < rounds; ++round) {
    MLCB_OPAQUE(a);
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
  }
  __m512i total = a;
  for (const __m512i& sum : sums) total = _mm512_add_epi32(total, sum);
  use_result(_mm512_reduce_add_epi32(total));
}

// Four products of whole tiles, 16 x 16 x 64, a round.
__attribute__((target("amx-tile,amx-int8"))) void int8_amx(int64_t rounds) {
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_release();
}

#undef MLCB_OPAQUE
#undef MLCB_OPAQUE_YMM

// Those that need more come first.
constexpr PeakLoop kPeakLoops[] = {
    {"amx_int8", true, 4 * 16 * 16 * 64 * 2, int8_amx},
    {"avx512_vnni", true, kSums * 64 * 2, int8_avx512vnni},
    {"avx_vnni", true, kSums * 32 * 2, int8_avxvnni},
    {"avx2", true, 4 * 8 * 32 * 2, int8_avx2},
    {"avx512f", false, kSums * 16 * 2, float_avx512},
    {"fma", false, kSums * 8 * 2, float_avx2},
};

const PeakLoop* peak_loop(const std::vector<std::string>& capability, bool int8) {
  for (const PeakLoop& loop : kPeakLoops) {
    if (loop.int8 != int8) continue;
    if (std::find(capability.begin(), capability.end(), loop.instructions) != capability.end()) {
      return &loop;
    }
  }
  return nullptr;
}

#else

const PeakLoop* peak_loop(const std::vector<std::string>&, bool) { return nullptr; }

#endif

double timed_launch(ThreadPool* pool, ParallelTask task, void* closure, int tasks) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  pool->launch(task, closure, tasks);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct PeakRun {
  const PeakLoop* loop;
  int64_t rounds;
};

int run_peak(int, ParallelGroupEnv*, void* closure) {
  const PeakRun& run = *static_cast<PeakRun*>(closure);
  run.loop->run(run.rounds);
  return 0;
}

std::string peak_json(ThreadPool* pool, const PeakLoop* loop) {
  if (loop == nullptr) return "null";
  PeakRun run{loop, 1000};
  const int threads = pool->threads();
  while (timed_launch(pool, run_peak, &run, threads) < kPeakSeconds) run.rounds *= 2;
  double best = 1e30;
  for (int i = 0; i < kPeakRuns; ++i) {
    best = std::min(best, timed_launch(pool, run_peak, &run, threads));
  }
  const double gops = loop->ops * static_cast<double>(run.rounds) * threads / best * 1e-9;
  return "{\"gops\":" + decimal(gops) + ",\"instructions\":" + json_quote(loop->instructions) + "}";
}

struct ReadRun {
  const uint8_t* data;
  size_t bytes;  // of a task
};

// Four streams at once: processors keep more lines in flight for more of them.
int run_read(int task, ParallelGroupEnv*, void* closure) {
  typedef uint64_t Vector __attribute__((vector_size(16)));
  constexpr size_t kStreams = 4, kLine = 64;
  const ReadRun& run = *static_cast<ReadRun*>(closure);
  const size_t stream = run.bytes / kStreams;
  const uint8_t* const begin = run.data + static_cast<size_t>(task) * run.bytes;
  Vector sums[kStreams] = {};
  for (size_t at = 0; at < stream; at += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint8_t* const line = begin + s * stream + at;
      for (size_t part = 0; part < kLine; part += sizeof(Vector)) {
        Vector value;
        std::memcpy(&value, line + part, sizeof value);
        sums[s] ^= value;
      }
    }
  }
  const Vector total = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  use_result(static_cast<int>(total[0] ^ total[1]));
  return 0;
}

double read_gbytes(ThreadPool* pool) {
  const MemoryRegion memory(kReadBytes, "the measurement of memory speed");
  memory.prefer_large_pages();
  std::memset(memory.data(), 1, memory.size());
  // More tasks than threads: one that is held up leaves them to the others.
  const int tasks = pool->threads() * 4;
  const size_t bytes = kReadBytes / static_cast<size_t>(tasks) / 4096 * 4096;
  ReadRun run{memory.data(), bytes};
  double best = 1e30;
  for (int i = 0; i < kReadRuns; ++i) {
    best = std::min(best, timed_launch(pool, run_read, &run, tasks));
  }
  return static_cast<double>(bytes) * tasks / best * 1e-9;
}

}  // namespace

std::string measure_limits(ThreadPool* pool, const std::vector<std::string>& capability,
                           bool int8) {
  std::string out = "{\"float\":" + peak_json(pool, peak_loop(capability, false));
  out += ",\"int8\":" + peak_json(pool, int8 ? peak_loop(capability, true) : nullptr);
  out += ",\"read_gbytes\":" + decimal(read_gbytes(pool));
  return out + ",\"threads\":" + std::to_string(pool->threads()) + "}";
}

}  // namespace mlcb
