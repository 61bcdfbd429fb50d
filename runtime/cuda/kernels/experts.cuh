// Rows times the matrix of the expert each belongs to.
//
// Rows are sorted by expert first, those of one in their order; those that no expert takes come last. Then blocks multiply
// tiles: some rows of one expert with some columns of its matrix, or for the gradient a part of one matrix. These products
// are plain sums, of any type; experts_mma.cuh has those of half types on tensor cores.

namespace experts {

// The expert of an index, of the `Experts` from `first` on that are here; `Experts` if that is none of them. There are
// `all`, and negative indices count from the end.
template <i64 Experts> DEVICE i64 expert_of(i64 index, i64 first, i64 all) {
    if (index < 0) index += all;
    const i64 here = index - first;
    return index < 0 || index >= all || here < 0 || here >= Experts ? Experts : here;
}

// A block an expert, and one for the rows that no expert takes: where its rows start in `order`, and which they are.
template <i64 Rows, i64 Experts, class T>
DEVICE void sort(const T* index, i32* order, i32* starts, i64 first, i64 all) {
    SHARED(i32, counts, 256);
    const i64 own = blockIdx.x, each = (Rows + blockDim.x - 1) / blockDim.x;
    const i64 begin = threadIdx.x * each, end = begin + each < Rows ? begin + each : Rows;
    i32 less = 0, count = 0;
    for (i64 row = begin; row < end; row++) {
        const i64 expert = expert_of<Experts>((i64)index[row], first, all);
        less += expert < own;
        count += expert == own;
    }
    less = sum_over_block(less);
    counts[threadIdx.x] = count;
    __syncthreads();
    i32 at = less;
    for (u32 i = 0; i < threadIdx.x; i++) at += counts[i];
    for (i64 row = begin; row < end; row++)
        if (expert_of<Experts>((i64)index[row], first, all) == own) order[at++] = (i32)row;
    if (threadIdx.x > 0) return;
    starts[own] = less;
    if (own == Experts) starts[own + 1] = (i32)Rows;
}

// What a block of 256 threads multiplies at once.
constexpr int ROWS = 64, COLUMNS = 128, TERMS = 16;

// What a thread has of a tile's sums: four rows, and twice four columns half a tile apart.
template <class C> struct Sums {
    C at[4][8];
    DEVICE int row(int i) { return threadIdx.x / 16 * 4 + i; }
    DEVICE int column(int i) { return i / 4 * (COLUMNS / 2) + threadIdx.x % 16 * 4 + i % 4; }
};

// A side of a tile on its way from memory. `AlongTerms`: whether terms are neighbours there, or rows (or columns).
template <int Size, bool AlongTerms, class C> struct Side {
    static constexpr int EACH = Size * TERMS / 256, STEP = Size + 4;

    DEVICE int row(int i) { return AlongTerms ? (threadIdx.x + i * 256) / TERMS : (threadIdx.x + i * 256) % Size; }
    DEVICE int term(int i) { return AlongTerms ? (threadIdx.x + i * 256) % TERMS : (threadIdx.x + i * 256) / Size; }

    // `of` gives the element of a row (or column) and a term; there are so many terms.
    template <class Of> DEVICE void fetch(C (&held)[EACH], i64 first, i64 terms, Of of) {
#pragma unroll
        for (int i = 0; i < EACH; i++) held[i] = first + term(i) < terms ? of(row(i), first + term(i)) : (C)0;
    }
    DEVICE void keep(const C (&held)[EACH], C* tile) {
#pragma unroll
        for (int i = 0; i < EACH; i++) tile[term(i) * STEP + row(i)] = held[i];
    }
};

// Terms that are added up one after the other; sums of these are added up again, so that little is lost.
constexpr i64 RUN = 256;

// Adds to the sums the products of the terms of a tile.
template <class C> DEVICE void add_products(const C* left, const C* right, Sums<C>& sums) {
    // Not all at once: the sums leave few registers for what is ahead.
#pragma unroll 4
    for (int term = 0; term < TERMS; term++) {
        const Pack<C, 4> x = load<4>(left + term * (ROWS + 4) + Sums<C>::row(0));
        const Pack<C, 4> low = load<4>(right + term * (COLUMNS + 4) + Sums<C>::column(0));
        const Pack<C, 4> high = load<4>(right + term * (COLUMNS + 4) + Sums<C>::column(4));
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                sums.at[i][j] = fma(x.at[i], j < 4 ? low.at[j % 4] : high.at[j % 4], sums.at[i][j]);
    }
}

// `Σ left(row, term) · right(column, term)` for a tile of rows and columns. All threads of the block must come here.
template <bool LeftAlongTerms, bool RightAlongTerms, class C, class Left, class Right>
DEVICE Sums<C> multiply(i64 terms, Left left, Right right) {
    typedef Side<ROWS, LeftAlongTerms, C> Rows;
    typedef Side<COLUMNS, RightAlongTerms, C> Columns;
    struct alignas(16) Room { C at[TERMS * (ROWS + 4 + COLUMNS + 4)]; };
    SHARED(Room, room, 1);
    C* const of_left = room->at;
    C* const of_right = of_left + TERMS * Rows::STEP;
    Sums<C> total = {}, run = {};
    C held_left[Rows::EACH], held_right[Columns::EACH];
    Rows::fetch(held_left, 0, terms, left);
    Columns::fetch(held_right, 0, terms, right);
    for (i64 first = 0; first < terms; first += TERMS) {
        // What was there has been used.
        __syncthreads();
        Rows::keep(held_left, of_left);
        Columns::keep(held_right, of_right);
        __syncthreads();
        Rows::fetch(held_left, first + TERMS, terms, left);
        Columns::fetch(held_right, first + TERMS, terms, right);
        add_products(of_left, of_right, run);
        if (first % RUN == RUN - TERMS || first + TERMS >= terms) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                total.at[i / 8][i % 8] += run.at[i / 8][i % 8];
                run.at[i / 8][i % 8] = (C)0;
            }
        }
    }
    return total;
}

// A tile's rows: of this expert, from this place in the order on.
struct Tile { i32 expert, first, count; };

// The tile with this number, of tiles of at most `Size` rows; expert -1 if there are fewer tiles. All threads of a warp
// must come here.
template <i64 Experts, int Size> DEVICE Tile find(const i32* starts, i32 tile) {
    const i32 lane = threadIdx.x % 32;
    i32 before = 0;
    for (i32 base = 0; base <= Experts; base += 32) {
        const i32 expert = base + lane;
        const i32 rows = expert <= Experts ? starts[expert + 1] - starts[expert] : 0;
        const i32 tiles = (rows + Size - 1) / Size;
        i32 with = tiles;
        for (i32 offset = 1; offset < 32; offset *= 2) {
            const i32 other = __shfl_sync(0xffffffffu, with, (lane - offset) & 31);
            if (lane >= offset) with += other;
        }
        const i32 number = tile - (before + with - tiles);
        const bool is_own = number >= 0 && number < tiles;
        const i32 found = over_warp<Largest>(is_own ? expert : -1);
        if (found >= 0) {
            const i32 start = starts[found], left = starts[found + 1] - start;
            const i32 first = over_warp<Largest>(is_own ? number * Size : -1);
            return {found, start + first, left - first < Size ? left - first : Size};
        }
        before += __shfl_sync(0xffffffffu, with, 31);
    }
    return {-1, 0, 0};
}

// `out[t] = x[t] · weights[expert of t]`: `K` numbers become `N`. Zeros for the rows that no expert takes.
template <i64 Experts, i64 K, i64 N, bool Transposed, class T>
DEVICE void multiply_rows(const T* x, const T* weights, const i32* order, const i32* starts, T* out) {
    typedef Computed<T> C;
    constexpr i64 across = (N + COLUMNS - 1) / COLUMNS;
    const Tile tile = find<Experts, ROWS>(starts, (i32)(blockIdx.x / across));
    if (tile.expert < 0) return;
    SHARED(i32, rows, ROWS);
    if (threadIdx.x < ROWS) rows[threadIdx.x] = (int)threadIdx.x < tile.count ? order[tile.first + threadIdx.x] : 0;
    __syncthreads();
    const i64 column = blockIdx.x % across * COLUMNS;
    const T* const matrix = weights + (i64)tile.expert * K * N;
    const auto of_row = [&](int row, i64 term) { return row < tile.count ? widen(x[rows[row] * K + term]) : (C)0; };
    const auto of_column = [&](int own, i64 term) {
        const i64 at = column + own;
        return at < N ? widen(matrix[Transposed ? at * K + term : term * N + at]) : (C)0;
    };
    const Sums<C> sums = multiply<true, Transposed, C>(tile.expert < Experts ? K : 0, of_row, of_column);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const i64 row = sums.row(i / 8), at = column + sums.column(i % 8);
        if (row < tile.count && at < N) out[rows[row] * N + at] = narrow<T>(sums.at[i / 8][i % 8]);
    }
}

// `out[e] = Σ rows[t]ᵀ · columns[t]` over the rows of an expert, or that added to what is there.
template <i64 Experts, i64 K, i64 N, class T>
DEVICE void sum_of_rows(const T* rows, const T* columns, const i32* order, const i32* starts, T* out, i64 adds) {
    typedef Computed<T> C;
    constexpr i64 across = (N + COLUMNS - 1) / COLUMNS, down = (K + ROWS - 1) / ROWS;
    const i64 expert = blockIdx.x / (across * down), part = blockIdx.x % (across * down);
    const i64 first_row = part / across * ROWS, first_column = part % across * COLUMNS;
    const i32* const own = order + starts[expert];
    const auto of_row = [&](int row, i64 term) {
        const i64 at = first_row + row;
        return at < K ? widen(rows[own[term] * K + at]) : (C)0;
    };
    const auto of_column = [&](int column, i64 term) {
        const i64 at = first_column + column;
        return at < N ? widen(columns[own[term] * N + at]) : (C)0;
    };
    const Sums<C> sums = multiply<false, false, C>(starts[expert + 1] - starts[expert], of_row, of_column);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const i64 row = first_row + sums.row(i / 8), column = first_column + sums.column(i % 8);
        if (row >= K || column >= N) continue;
        T* const at = out + (expert * K + row) * N + column;
        const C sum = sums.at[i / 8][i % 8];
        *at = narrow<T>(adds ? (C)(widen(*at) + sum) : sum);
    }
}

}  // namespace experts
