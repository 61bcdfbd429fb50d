// Padding, running sums. (What is laid together is copied, piece by piece.)

namespace shape {

// A value over and over: `pattern` is 8 bytes of it.
template <class T> DEVICE void repeat(u64 pattern, T& to) { to = (T)pattern; }
DEVICE void repeat(u64 pattern, Pack<u32, 4>& to) {
    for (int i = 0; i < 4; i++) to.at[i] = (u32)(pattern >> 32 * (i % 2));
}

// Of each `Row` elements of the result, in memory one after the other, those from `Start` on are `Count` of the operand's
// in row-major order; the others are the value. An element a thread.
template <class From, i64 Rows, i64 Row, i64 Start, i64 Count, class I, class T>
DEVICE void pad(const T* from, T* to, u64 pattern) {
    const I i = (I)thread_index();
    if (i >= (I)(Rows * Row)) return;
    const i64 at = (i64)(i % (I)Row) - Start;
    T x;
    repeat(pattern, x);
    if constexpr (Count > 0) {
        if (at >= 0 && at < Count) x = from[From::at((I)(i / (I)Row * (I)Count + (I)at))];
    }
    to[i] = x;
}

// ---- Running sums --------------------------------------------------------------------------------------------------

// Rows of a dense tensor along a dim: `Size` elements that stand `Inner` apart. A row is cut into chunks, each with a sum
// of its own first, so that many threads can share a row and no sum has many terms.
template <i64 Outer, i64 Size, i64 Inner, i64 Chunk, bool Exclusive, bool Reverse> struct Rows {
    static constexpr i64 count = Outer * Inner;
    static constexpr i64 chunks = (Size + Chunk - 1) / Chunk;
    static constexpr bool exclusive = Exclusive;

    // Where the element stands that is summed as the one with this index.
    DEVICE i64 at(i64 row, i64 index) {
        return (row / Inner * Size + (Reverse ? Size - 1 - index : index)) * Inner + row % Inner;
    }
    DEVICE i64 begin(i64 chunk) { return chunk * Chunk; }
    DEVICE i64 end(i64 chunk) { return (chunk + 1) * Chunk < Size ? (chunk + 1) * Chunk : Size; }
};

// The sum of each chunk, one a thread; neighbouring threads have neighbouring rows.
template <class Rows, class C, class T> DEVICE void sums_by_thread(const T* from, C* sums) {
    const i64 own = thread_index(), row = own % Rows::count, chunk = own / Rows::count;
    if (chunk >= Rows::chunks) return;
    C sum = (C)0;
    for (i64 i = Rows::begin(chunk); i < Rows::end(chunk); i++) sum += (C)widen(from[Rows::at(row, i)]);
    sums[own] = sum;
}

// Running sums, a chunk a thread.
template <class Rows, class C, class T> DEVICE void run_by_thread(const T* from, T* to, const C* sums) {
    const i64 own = thread_index(), row = own % Rows::count, chunk = own / Rows::count;
    if (chunk >= Rows::chunks) return;
    C before = (C)0, sum = (C)0;
    // Sums of a few are added up, so that little is lost.
    for (i64 i = 0; i < chunk;) {
        C some = (C)0;
        for (i64 n = 0; n < 64 && i < chunk; n++, i++) some += sums[i * Rows::count + row];
        before += some;
    }
    for (i64 i = Rows::begin(chunk); i < Rows::end(chunk); i++) {
        const i64 at = Rows::at(row, i);
        const C with = sum + (C)widen(from[at]);
        to[at] = narrow<T>(before + (Rows::exclusive ? sum : with));
        sum = with;
    }
}

// The sum of each chunk, one a block.
template <class Rows, class C, class T> DEVICE void sums_by_block(const T* from, C* sums) {
    const i64 row = blockIdx.x / Rows::chunks, chunk = blockIdx.x % Rows::chunks;
    C sum = (C)0;
    for (i64 i = Rows::begin(chunk) + threadIdx.x; i < Rows::end(chunk); i += blockDim.x)
        sum += (C)widen(from[Rows::at(row, i)]);
    sum = sum_over_block(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Of what the threads of a block have, the sum of all before this thread's, and of all.
template <class C> struct Scan { C before, with, all; };
template <class C> DEVICE Scan<C> scan_block(C x) {
    SHARED(C, of_warps, 32);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    C with = x;
    for (int offset = 1; offset < 32; offset *= 2) {
        const C other = __shfl_sync(0xffffffffu, with, (lane - offset) & 31);
        if (lane >= offset) with += other;
    }
    C before = __shfl_sync(0xffffffffu, with, (lane - 1) & 31);
    if (lane == 0) before = (C)0;
    // What an earlier call left there has been read.
    __syncthreads();
    if (lane == 31) of_warps[warp] = with;
    __syncthreads();
    C of_others = (C)0, all = (C)0;
    for (int i = 0; i < warps; i++) {
        if (i == warp) of_others = all;
        all += of_warps[i];
    }
    return {of_others + before, of_others + with, all};
}

// Running sums, a chunk a block.
template <class Rows, class C, class T> DEVICE void run_by_block(const T* from, T* to, const C* sums) {
    const i64 row = blockIdx.x / Rows::chunks, chunk = blockIdx.x % Rows::chunks;
    C before = (C)0;
    if (Rows::chunks > 1) {
        for (i64 i = threadIdx.x; i < chunk; i += blockDim.x) before += sums[row * Rows::chunks + i];
        before = sum_over_block(before);
    }
    for (i64 first = Rows::begin(chunk); first < Rows::end(chunk); first += blockDim.x) {
        const i64 i = first + threadIdx.x;
        const bool is_there = i < Rows::end(chunk);
        const Scan<C> scan = scan_block(is_there ? (C)widen(from[Rows::at(row, i)]) : (C)0);
        if (is_there) to[Rows::at(row, i)] = narrow<T>(before + (Rows::exclusive ? scan.before : scan.with));
        before += scan.all;
    }
}

}  // namespace shape
