// CUDA's threads on a processor: a fiber for each thread of a block, one block after the other. A kernel runs as on a
// device, but slowly; threads take turns only where they wait for each other, in an order that the caller chooses, so
// that a kernel which forgets to wait shows it.
//
// Shared memory is filled with ones (NaN) before each block. x86-64 and Linux.

#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <utility>
#include <vector>

#define ON_HOST 1
#define __global__
#define __device__
#define __forceinline__ inline

namespace host {

struct Index { unsigned x, y, z; };

enum class Waits { Nothing, Block, Warp };

// A copy that is under way.
struct Copy { void* to; const void* from; size_t bytes; };

struct Fiber {
    void* stack_pointer = nullptr;
    char* stack = nullptr;
    unsigned number = 0;
    Index index{};
    Waits waits = Waits::Nothing;
    unsigned warp_mask = 0;
    bool done = false;
    // A copy is made when its thread waits for it: one that nobody waits for is never there.
    std::vector<Copy> copies;
};

// What a warp's threads show each other.
struct Exchange { uint64_t words[32][8]; };

inline std::vector<Fiber> fibers;
inline Fiber* current = nullptr;
inline void* scheduler = nullptr;
inline std::function<void()> body;
inline Index block_index, block_size, grid_size;
inline Exchange exchanges[32];
// One piece of shared memory for each place that declares some.
inline std::vector<std::vector<char>> shared_memory;

extern "C" void host_switch(void** save, void* load);
asm(R"(
.text
.local host_switch
.type host_switch,@function
host_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

inline void yield() { Fiber* own = current; host_switch(&own->stack_pointer, scheduler); }

inline void enter() {
    body();
    current->done = true;
    yield();
    abort();
}

constexpr size_t STACK = 128 * 1024;

inline void prepare(Fiber& fiber) {
    if (!fiber.stack) {
        fiber.stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fiber.stack == MAP_FAILED) abort();
    }
    void** top = (void**)(((uintptr_t)fiber.stack + STACK) & ~15ull);
    *--top = nullptr;
    *--top = (void*)enter;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
    fiber.done = false;
    fiber.waits = Waits::Nothing;
    fiber.copies.clear();
}

// The order in which threads run: 0 is by number, 1 the reverse, others are shuffled by it.
inline std::vector<unsigned> turns(unsigned count, unsigned order) {
    std::vector<unsigned> turns(count);
    for (unsigned i = 0; i < count; i++) turns[i] = order == 1 ? count - 1 - i : i;
    uint32_t state = order * 2654435761u;
    for (unsigned i = count; order >= 2 && i > 1; i--) {
        state = state * 1664525u + 1013904223u;
        std::swap(turns[i - 1], turns[(state >> 8) % i]);
    }
    return turns;
}

// Lets the warps go on whose threads all wait. Whether there was one.
inline bool release_warps() {
    bool released = false;
    for (size_t first = 0; first < fibers.size(); first += 32) {
        const size_t end = std::min(fibers.size(), first + 32);
        unsigned waiting = 0, alive = 0, mask = 0;
        for (size_t i = first; i < end; i++) {
            if (fibers[i].waits == Waits::Warp) waiting |= 1u << (i - first), mask = fibers[i].warp_mask;
            if (!fibers[i].done) alive |= 1u << (i - first);
        }
        if (!waiting || (waiting & mask) != (mask & alive)) continue;
        for (size_t i = first; i < end; i++)
            if (fibers[i].waits == Waits::Warp && fibers[i].warp_mask == mask) fibers[i].waits = Waits::Nothing;
        released = true;
    }
    return released;
}

// Runs a block. Whether it came to its end; it does not where threads wait for others that will not come.
inline bool run_block(const std::vector<unsigned>& turns) {
    for (auto& memory : shared_memory) std::fill(memory.begin(), memory.end(), (char)0xff);
    for (unsigned i = 0; i < fibers.size(); i++) {
        prepare(fibers[i]);
        fibers[i].number = i;
        fibers[i].index = {i % block_size.x, i / block_size.x % block_size.y, i / (block_size.x * block_size.y)};
    }
    size_t left = fibers.size();
    while (left > 0) {
        bool moved = false;
        for (unsigned turn : turns) {
            Fiber& fiber = fibers[turn];
            if (fiber.done || fiber.waits != Waits::Nothing) continue;
            current = &fiber;
            host_switch(&scheduler, fiber.stack_pointer);
            moved = true;
            left -= fiber.done;
        }
        moved |= release_warps();
        const auto at_barrier = [](const Fiber& fiber) { return fiber.waits == Waits::Block; };
        if (left > 0 && (size_t)std::count_if(fibers.begin(), fibers.end(), at_barrier) == left) {
            for (auto& fiber : fibers) fiber.waits = Waits::Nothing;
            moved = true;
        }
        if (left > 0 && !moved) return false;
    }
    return true;
}

// A parameter of a kernel, from the 8 bytes it travels in.
template <class T> T argument(uint64_t word) {
    T value;
    static_assert(sizeof(T) <= 8);
    memcpy(&value, &word, sizeof(T));
    return value;
}

template <class... P, size_t... I>
bool run(void (*kernel)(P...), const unsigned* sizes, const uint64_t* words, unsigned order, std::index_sequence<I...>) {
    grid_size = {sizes[0], sizes[1], sizes[2]};
    block_size = {sizes[3], 1, 1};
    for (size_t i = block_size.x; i < fibers.size(); i++) munmap(fibers[i].stack, STACK);
    fibers.resize(block_size.x);
    body = [=] { kernel(argument<P>(words[I])...); };
    const auto own = turns(block_size.x, order);
    // Blocks come in any order on a device.
    const uint64_t blocks = (uint64_t)grid_size.x * grid_size.y * grid_size.z;
    const uint64_t corners = sizes[4] ? sizes[4] : blocks;
    for (uint64_t i = 0; i < blocks; i++) {
        if (i == corners && blocks - corners > corners) i = blocks - corners;
        const uint64_t block = order % 2 ? blocks - 1 - i : i, layer = (uint64_t)grid_size.x * grid_size.y;
        block_index = {(unsigned)(block % grid_size.x), (unsigned)(block % layer / grid_size.x), (unsigned)(block / layer)};
        if (!run_block(own)) return false;
    }
    return true;
}

// Runs a kernel. `sizes` has the grid's three sizes, the block's, and how many blocks run at each end of the grid; 0 is
// all blocks. Returns whether the kernel came to its end.
template <class... P>
bool run(void (*kernel)(P...), const unsigned* sizes, const uint64_t* words, unsigned order) {
    return run(kernel, sizes, words, order, std::index_sequence_for<P...>());
}

inline void wait_for_warp(unsigned mask) {
    current->warp_mask = mask;
    current->waits = Waits::Warp;
    yield();
}

template <class T> T shuffle(unsigned mask, T value, unsigned from) {
    static_assert(sizeof(T) <= sizeof(Exchange::words[0]));
    Exchange& exchange = exchanges[current->number / 32];
    memcpy(exchange.words[current->number % 32], &value, sizeof(T));
    wait_for_warp(mask);
    memcpy(&value, exchange.words[from % 32], sizeof(T));
    wait_for_warp(mask);
    return value;
}

// What `of` makes of what the threads of a warp have: it is given the 32, by their numbers.
template <class T, class Of> auto of_warp(const T& own, Of of) {
    static_assert(sizeof(T) <= sizeof(Exchange::words[0]));
    Exchange& exchange = exchanges[current->number / 32];
    memcpy(exchange.words[current->number % 32], &own, sizeof(T));
    wait_for_warp(~0u);
    const auto made = of([&](unsigned lane) -> const T& { return *(const T*)exchange.words[lane]; });
    wait_for_warp(~0u);
    return made;
}

// Copies as much, or zeros, when the thread waits for its copies. Both addresses are multiples of the size.
inline void copy_later(void* to, const void* from, size_t bytes) {
    if (((uintptr_t)to | (uintptr_t)from) % bytes != 0) __builtin_trap();
    current->copies.push_back({to, from, bytes});
}
inline void wait_for_copies() {
    for (const Copy& copy : current->copies)
        copy.from ? (void)memcpy(copy.to, copy.from, copy.bytes) : (void)memset(copy.to, 0, copy.bytes);
    current->copies.clear();
}

// The shared memory of the place with this number.
template <class T> T* shared(size_t place, size_t count) {
    if (shared_memory.size() <= place) shared_memory.resize(place + 1);
    auto& memory = shared_memory[place];
    // Types are aligned to 256 bytes at most.
    const size_t bytes = count * sizeof(T) + 255;
    if (memory.size() < bytes) memory.resize(bytes, (char)0xff);
    return (T*)((uintptr_t)(memory.data() + 255) & ~(uintptr_t)255);
}

inline size_t next_place() { static size_t places = 0; return places++; }

// Ends the block whose thread touched memory that it may not. The handler of the signal lets the thread go on here.
extern "C" __attribute__((visibility("default"))) void host_abandon() {
    for (Fiber& fiber : fibers) fiber.done = true, fiber.waits = Waits::Nothing;
    yield();
    abort();
}

}  // namespace host

#define threadIdx (host::current->index)
#define blockIdx (host::block_index)
#define blockDim (host::block_size)
#define gridDim (host::grid_size)
// Of a template each instance is a place of its own, as on a device.
#define SHARED(type, name, count)                             \
    static const size_t name##_place = host::next_place();    \
    type* const name = host::shared<type>(name##_place, count)

static inline void __syncthreads() { host::current->waits = host::Waits::Block; host::yield(); }
static inline void __syncwarp(unsigned mask = ~0u) { host::wait_for_warp(mask); }
template <class T> T __shfl_sync(unsigned mask, T value, int from) { return host::shuffle(mask, value, from); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, int with) {
    return host::shuffle(mask, value, (host::current->number % 32) ^ with);
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
    const float size = std::fabs(value);
    if (value != value) return sign | 0x7e00 | (bits >> 13 & 0x3ff);
    if (size >= 65520.0f) return sign | 0x7c00;
    // Below the smallest normal number fractions are multiples of 2^-24; nearbyint rounds ties to even.
    if (size < 0x1p-14f) return sign | (uint16_t)std::nearbyintf(size * 0x1p24f);
    const uint32_t own = bits & 0x7fffffff;
    return sign | (own - (112u << 23) + 0xfff + (own >> 13 & 1)) >> 13;
}
