// What every kernel builds on: element types and their conversions, packs, layouts, reductions over a block.
//
// The same text is compiled by NVRTC for a device and, after host.h, by a C++ compiler for the processor. No header of
// CUDA is included: NVRTC alone is enough.

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A bool is stored as a u8, 0 or 1.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#ifdef ON_HOST
#define DEVICE static inline
#define KERNEL(...) extern "C" void
#else
#define DEVICE static __device__ __forceinline__
// A kernel for blocks of so many threads; a second number is how many blocks a multiprocessor shall have at once.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
// An array that the threads of a block share; what is in it at first means nothing.
#define SHARED(type, name, count) __shared__ type name[count]

DEVICE float half_value(u16 bits) { float value; asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits)); return value; }
DEVICE u16 half_bits(float value) { u16 bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); return bits; }
DEVICE u16 bfloat_bits(float value) { u16 bits; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value)); return bits; }
DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
DEVICE float of_bits(u32 bits) { return __uint_as_float(bits); }
#define INFINITY of_bits(0x7f800000u)
#define NAN of_bits(0x7fffffffu)
#endif

// ---- Numbers -------------------------------------------------------------------------------------------------------

// The type that a stored type is computed in: `Computed<bf16>` is float.
template <class T> struct ComputedIn { typedef T type; };
template <> struct ComputedIn<f16> { typedef float type; };
template <> struct ComputedIn<bf16> { typedef float type; };
template <class T> using Computed = typename ComputedIn<T>::type;

template <class T> DEVICE T widen(T x) { return x; }
DEVICE float widen(f16 x) { return half_value(x.bits); }
DEVICE float widen(bf16 x) { return of_bits((u32)x.bits << 16); }

// A double as a float rounded to odd: rounding that once more is as good as rounding the double.
DEVICE float to_odd(double x) {
    const float nearest = (float)x;
    if ((double)nearest == x || x != x) return nearest;
    const u32 bits = bits_of(nearest);
    return of_bits((fabs((double)nearest) > fabs(x) ? bits - 1 : bits) | 1);
}

// What is stored of a number that was computed.
template <class T> struct Narrow {
    template <class C> DEVICE T of(C x) { return (T)x; }
};
template <> struct Narrow<f16> {
    DEVICE f16 of(float x) { return f16{half_bits(x)}; }
    DEVICE f16 of(double x) { return f16{half_bits(to_odd(x))}; }
};
template <> struct Narrow<bf16> {
    DEVICE bf16 of(float x) { return bf16{bfloat_bits(x)}; }
    DEVICE bf16 of(double x) { return bf16{bfloat_bits(to_odd(x))}; }
};
template <class T, class C> DEVICE T narrow(C x) { return Narrow<T>::of(x); }

// A number rounded to what is stored of it.
template <class T, class C> DEVICE Computed<T> rounded(C x) { return widen(narrow<T>(x)); }

// The larger; NaN if either is.
template <class T> DEVICE T larger(T x, T y) { return x > y || x != x ? x : y; }
template <class T> DEVICE T smaller(T x, T y) { return x < y || x != x ? x : y; }

// ---- Memory --------------------------------------------------------------------------------------------------------

// Neighbours that are read and written together; those that take 16 bytes or a power of two less, at once.
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Pack { T at[N]; };

// Stands where a pack is read (`LOAD`) or written (`STORE`, `STORE_SHARED`). The stand-in counts the sectors of memory that packs touch, if
// a test asks for it; another test counts the packs in a kernel's PTX.
#ifndef TOUCH
#define TOUCH(access, address, bytes)
#endif

#ifdef ON_HOST
template <class P> DEVICE void store_whole(P* to, const P& pack) {
    host::check_global(to);
    *to = pack;
}
#else
// Writes a pack to global memory, 16 bytes or all of a smaller pack by one instruction. An assignment copies the members
// one by one, and the compiler often leaves it so: eight stores of 2 bytes.
template <class P> DEVICE void store_whole(P* to, const P& pack) {
    constexpr int BYTES = sizeof(P), WORDS = (BYTES + 3) / 4;
    u32 words[WORDS];
    memcpy(words, &pack, BYTES);
    const u64 address = __cvta_generic_to_global(to);
    if constexpr (BYTES % 16 == 0) {
        #pragma unroll
        for (int i = 0; i < WORDS; i += 4)
            asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                         :
                         : "l"(address + 4 * i), "r"(words[i]), "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
                         : "memory");
    } else if constexpr (BYTES == 8) {
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" : : "l"(address), "r"(words[0]), "r"(words[1]) : "memory");
    } else if constexpr (BYTES == 4) {
        asm volatile("st.global.b32 [%0], %1;" : : "l"(address), "r"(words[0]) : "memory");
    } else {
        *to = pack;
    }
}
#endif

template <int N, class T> DEVICE Pack<T, N> load(const T* from) {
    TOUCH(LOAD, from, sizeof(Pack<T, N>));
    return *(const Pack<T, N>*)from;
}
// Writes a pack to global memory.
template <int N, class T> DEVICE void store(T* to, const Pack<T, N>& pack) {
    TOUCH(STORE, to, sizeof(Pack<T, N>));
    store_whole((Pack<T, N>*)to, pack);
}
// Writes a pack to shared memory.
template <int N, class T> DEVICE void store_shared(T* to, const Pack<T, N>& pack) {
    TOUCH(STORE_SHARED, to, sizeof(Pack<T, N>));
    *(Pack<T, N>*)to = pack;
}

// The elements that the alignment of a pack is.
template <class T, int N> constexpr int aligned_to = (int)(alignof(Pack<T, N>) / sizeof(T));
// Whether packs that lie these numbers of elements apart are aligned if the first of them is.
template <class T, int N, i64... Strides> constexpr bool in_packs = ((Strides % aligned_to<T, N> == 0) && ...);

template <i64... N> struct List {};

// Where the element with a row-major index stands: `Layout<List<sizes…>, List<strides…>>::at(index)`. `I` is the type
// that is counted in.
template <class Sizes, class Strides> struct Layout;
template <i64 Size, i64 Stride> struct Layout<List<Size>, List<Stride>> {
    static constexpr i64 size = Size;
    // Whether `N` divides the distance between any two elements.
    template <int N> static constexpr bool apart = Size == 1 || Stride % N == 0;
    template <class I> DEVICE i64 at(I index) { return (i64)index * Stride; }
};
template <> struct Layout<List<>, List<>> {
    static constexpr i64 size = 1;
    template <int N> static constexpr bool apart = true;
    template <class I> DEVICE i64 at(I) { return 0; }
};
template <i64 Size, i64 Next, i64... Sizes, i64 Stride, i64 NextStride, i64... Strides>
struct Layout<List<Size, Next, Sizes...>, List<Stride, NextStride, Strides...>> {
    typedef Layout<List<Next, Sizes...>, List<NextStride, Strides...>> Inner;
    static constexpr i64 size = Size * Inner::size;
    template <int N> static constexpr bool apart = (Size == 1 || Stride % N == 0) && Inner::template apart<N>;
    template <class I> DEVICE i64 at(I index) {
        const I inner = (I)Inner::size;
        return (i64)(index / inner) * Stride + Inner::at((I)(index % inner));
    }
};

// ---- Threads -------------------------------------------------------------------------------------------------------

// The thread's index among all of the grid, counted along x.
DEVICE i64 thread_index() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

// How numbers combine. `nothing` changes nothing where it is combined with numbers of which `some` is one, which it reads
// if `NEEDS_SOME`.
struct Sum {
    static constexpr bool NEEDS_SOME = false;
    template <class T> DEVICE T of(T x, T y) { return x + y; }
    template <class T> DEVICE T nothing(T) { return (T)0; }
};
struct Largest {
    static constexpr bool NEEDS_SOME = true;
    template <class T> DEVICE T of(T x, T y) { return larger(x, y); }
    template <class T> DEVICE T nothing(T some) { return some; }
};
struct Smallest {
    static constexpr bool NEEDS_SOME = true;
    template <class T> DEVICE T of(T x, T y) { return smaller(x, y); }
    template <class T> DEVICE T nothing(T some) { return some; }
};

// What the 32 threads of a warp have, combined; every thread gets it.
template <class Combine, class T> DEVICE T over_warp(T x) {
    for (int offset = 16; offset > 0; offset /= 2) x = Combine::of(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// What the threads of a block of whole warps have, combined; every thread gets it. All threads of the block must come
// here.
template <class Combine, class T> DEVICE T over_block(T x) {
    SHARED(T, of_warps, 32);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = over_warp<Combine>(x);
    // What an earlier call left there has been read.
    __syncthreads();
    if (lane == 0) of_warps[warp] = x;
    __syncthreads();
    x = lane < blockDim.x / 32 ? of_warps[lane] : Combine::nothing(of_warps[0]);
    return over_warp<Combine>(x);
}
template <class T> DEVICE T sum_over_block(T x) { return over_block<Sum>(x); }
