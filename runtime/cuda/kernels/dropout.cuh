// Dropout and uniform numbers, with the words of the interpreter: the place of an element in the whole sample decides.

namespace dropout {

struct Words { u32 at[4]; };

// Four random words for a key and a counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy
// as 1, 2, 3, SC 2011).
DEVICE Words philox(u64 key, Words counter) {
    u32 a = counter.at[0], b = counter.at[1], c = counter.at[2], d = counter.at[3];
    u32 low = (u32)key, high = (u32)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 first = (u64)0xD2511F53u * a, second = (u64)0xCD9E8D57u * c;
        a = (u32)(second >> 32) ^ b ^ low;
        b = (u32)second;
        c = (u32)(first >> 32) ^ d ^ high;
        d = (u32)first;
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}

// The words of the elements `4·block` to `4·block + 3` of a sample.
DEVICE Words words(u64 key, u32 id, u64 sample, u64 block) {
    const u32 high = ((u32)(block >> 32) & 0xffff) | (u32)(sample >> 32) << 16;
    return philox(key, {{(u32)block, high, (u32)sample, id}});
}

// The word of an element, whose block was drawn. Which of the four is known where neighbours are many, so that they stay
// in registers.
template <int N>
DEVICE u32 word_of(const Words& drawn, int e, u64 element) {
    return N > 1 ? drawn.at[e % 4] : element % 2 ? (element % 4 == 1 ? drawn.at[1] : drawn.at[3])
                                                 : (element % 4 == 0 ? drawn.at[0] : drawn.at[2]);
}

// `N` neighbours a thread. `Elements` has an element's place in its sample, counted from `start`, `Samples` the sample
// among those that are here. Unless N is 1, neighbours stand one after the other in one sample, from a multiple of 4 on.
template <class Elements, class Samples, class I, int N, class C, class T>
DEVICE void apply(const T* x, const i64* numbers, T* y, i64 key, i64 id, i64 start, u64 threshold, C scale) {
    const I first = (I)thread_index() * N;
    if (first >= (I)Elements::size) return;
    const u64 sample = (u64)numbers[Samples::at(first)], element = (u64)(start + Elements::at(first));
    Pack<T, N> pack = load<N>(x + first);
    Words drawn;
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (e % 4 == 0) drawn = words((u64)key, (u32)id, sample, element / 4 + e / 4);
        const u64 word = word_of<N>(drawn, e, element);
        pack.at[e] = narrow<T>(word >= threshold ? (C)(widen(pack.at[e]) * scale) : (C)0);
    }
    store(y + first, pack);
}

// Uniform numbers: the upper 24 bits of each word, from 0 to below 1.
template <class Elements, class Samples, class I, int N, class C, class T>
DEVICE void uniform(const i64* numbers, T* y, i64 key, i64 id, i64 start) {
    const I first = (I)thread_index() * N;
    if (first >= (I)Elements::size) return;
    const u64 sample = (u64)numbers[Samples::at(first)], element = (u64)(start + Elements::at(first));
    Pack<T, N> pack;
    Words drawn;
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (e % 4 == 0) drawn = words((u64)key, (u32)id, sample, element / 4 + e / 4);
        pack.at[e] = narrow<T>((C)(word_of<N>(drawn, e, element) >> 8) * (C)(1.0 / 16777216));
    }
    store(y + first, pack);
}

template <i64 COUNT, class I, class C, class T>
DEVICE void fill(T* y, C value) {
    const I i = (I)thread_index();
    if (i < (I)COUNT) y[i] = narrow<T>(value);
}

}  // namespace dropout
