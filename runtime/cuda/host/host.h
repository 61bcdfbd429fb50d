// CUDA's threads on a processor, as a kernel sees them; `host.cpp` runs them, and is compiled once. Nothing of C++'s own library is
// included: to read it takes longer than most kernels.
//
// A device lets threads meet in a wait only if all of them execute it. So every wait has a site, and a launch fails whose
// threads wait at different sites, or for threads that never come.

#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ON_HOST 1
#define __global__
#define __device__
#define __forceinline__ inline

#pragma GCC visibility push(hidden)

namespace host {

struct Index { unsigned x, y, z; };

enum class Waits { Nothing, Block, Warp };

// A thread and its number in the block, and the part of a block that its threads see.
struct Thread {
    unsigned number = 0;
    Index index{};
};

// What a warp's threads show each other.
struct Exchange { uint64_t words[32][8]; };

struct ThreadBlock {
    Index index{};
    Exchange exchanges[32];
};

// Those that run.
extern Thread* thread;
extern ThreadBlock* block;
extern Index block_size, grid_size;

// A parameter of a kernel, from the 8 bytes it travels in.
template <class T> T argument(uint64_t word) {
    T value;
    static_assert(sizeof(T) <= 8);
    memcpy(&value, &word, sizeof(T));
    return value;
}

// A kernel with its parameters, for a thread to run.
struct Body {
    void (*run)(void (*kernel)(), const uint64_t* words);
    void (*kernel)();
    const uint64_t* words;
};

const char* run_grid(const Body& body, const unsigned* sizes, unsigned order);

// Calls a kernel. Words are read from left to right, as the parameters of a constructor in braces are.
template <class... P> struct Call {
    Call(void (*kernel)(), P... parameters) { ((void (*)(P...))kernel)(parameters...); }
};
template <class... P> void call(void (*kernel)(), const uint64_t* words) { Call<P...>{kernel, argument<P>(*words++)...}; }

// Runs a kernel: `sizes` has the grid's three, the block's, and how many blocks run at each end of the grid; 0 stands for
// all blocks. In orders from 2 on, two or three blocks are alive at once. Why it fails; null if it comes to its end.
template <class... P>
const char* run(void (*kernel)(P...), const unsigned* sizes, const uint64_t* words, unsigned order) {
    return run_grid(Body{call<P...>, (void (*)())kernel, words}, sizes, order);
}

// A function whose calls are known by where they are: no copy of a call may be made.
#ifdef __clang__
#define ONE_COPY __attribute__((noduplicate))
#else
#define ONE_COPY
#endif

// Waits at a line. Threads would wait at both copies of a call.
ONE_COPY void wait(Waits waits, unsigned mask, const char* file, unsigned line);

#define AT_LINE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()

template <class T> T shuffle(unsigned mask, T value, unsigned from, const char* file, unsigned line) {
    static_assert(sizeof(T) <= sizeof(Exchange::words[0]));
    Exchange& exchange = block->exchanges[thread->number / 32];
    memcpy(exchange.words[thread->number % 32], &value, sizeof(T));
    wait(Waits::Warp, mask, file, line);
    memcpy(&value, exchange.words[from % 32], sizeof(T));
    wait(Waits::Warp, mask, file, line);
    return value;
}

// What `of` makes of what the threads of a warp have: it is given the 32, by their numbers.
template <class T, class Of> auto of_warp(const T& own, Of of, AT_LINE) {
    static_assert(sizeof(T) <= sizeof(Exchange::words[0]));
    Exchange& exchange = block->exchanges[thread->number / 32];
    memcpy(exchange.words[thread->number % 32], &own, sizeof(T));
    wait(Waits::Warp, ~0u, file, line);
    const auto made = of([&](unsigned lane) -> const T& { return *(const T*)exchange.words[lane]; });
    wait(Waits::Warp, ~0u, file, line);
    return made;
}

// Keeps a pack's access to global memory, of which sectors are counted. Other accesses touch none.
ONE_COPY void touch(const void* pack, size_t bytes);

// Checks that a pack is stored in global memory: a device's instruction takes no other address.
void check_global(const void* to);

// Copies as much, or zeros, when the thread waits for its copies. Both addresses are multiples of the size.
void keep_copy(void* to, const void* from, size_t bytes);
inline void copy_later(void* to, const void* from, size_t bytes) {
#ifdef COUNT_SECTORS
    if (from) touch(from, bytes);
#endif
    keep_copy(to, from, bytes);
}
void close_copies();
void wait_for_copies();
// Waits for all groups but the last so many: their copies, and those of no group yet, are not made.
void wait_for_copies_but(unsigned last);

// The shared memory of the place with this number, aligned to 256 bytes.
void* shared_memory(size_t place, size_t size);
template <class T> T* shared(size_t place, size_t count) { return (T*)shared_memory(place, count * sizeof(T)); }
size_t next_place();

}  // namespace host

#pragma GCC visibility pop

#ifdef COUNT_SECTORS
#define TOUCH(access, address, bytes) host::touch(address, bytes)
#endif

#define threadIdx (host::thread->index)
#define blockIdx (host::block->index)
#define blockDim (host::block_size)
#define gridDim (host::grid_size)
// Of a template each instance is a place of its own, as on a device.
#define SHARED(type, name, count)                             \
    static const size_t name##_place = host::next_place();    \
    type* const name = host::shared<type>(name##_place, count)

static inline void __syncthreads(AT_LINE) { host::wait(host::Waits::Block, 0, file, line); }
static inline void __syncwarp(unsigned mask = ~0u, AT_LINE) { host::wait(host::Waits::Warp, mask, file, line); }
template <class T> T __shfl_sync(unsigned mask, T value, int from, AT_LINE) {
    return host::shuffle(mask, value, from, file, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int with, AT_LINE) {
    return host::shuffle(mask, value, (host::thread->number % 32) ^ with, file, line);
}

static inline uint32_t bits_of(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
static inline float of_bits(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }

// The bits of a float rounded to an 8-bit exponent and 7 bits of fraction, to nearest, ties to even.
static inline uint16_t bfloat_bits(float value) {
    const uint32_t bits = bits_of(value);
    if (value != value) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// IEEE 754's binary16.
static inline float half_value(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent > 0) return of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = (float)fraction * 0x1p-24f;
    return sign ? -small : small;
}
static inline uint16_t half_bits(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
    const float size = __builtin_fabsf(value);
    if (value != value) return sign | 0x7e00 | (bits >> 13 & 0x3ff);
    if (size >= 65520.0f) return sign | 0x7c00;
    // Below the smallest normal number fractions are multiples of 2^-24; nearbyint rounds ties to even.
    if (size < 0x1p-14f) return sign | (uint16_t)__builtin_nearbyintf(size * 0x1p24f);
    const uint32_t own = bits & 0x7fffffff;
    return sign | (own - (112u << 23) + 0xfff + (own >> 13 & 1)) >> 13;
}
