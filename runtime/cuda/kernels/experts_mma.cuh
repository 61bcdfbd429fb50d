// The products of experts.cuh in f16 and bf16, on tensor cores. After experts.cuh and mma.cuh.
//
// A block multiplies a tile of rows with a tile of columns, 32 terms a stage. Shared memory has two stages: while the
// block multiplies one of them, the next one is copied. Each warp has 64 rows and 32 columns of the tile, whose sums stay
// in its registers in f32.

namespace experts {

// The columns of a tile, and the terms of a stage. Four warps side by side have 64 rows; `Down` such rows of warps make
// a block.
constexpr int ACROSS = 128, STAGE = 32;

// One side of the product in shared memory: `Size` rows (or columns) of a stage's terms. `Along`: whether a line of the
// tile, as of memory, has the terms of one row (or column); else it has the rows (or columns) of one term. The groups of
// eight elements of a line change places, so that the threads of a load meet in no bank.
template <class T, int Size, bool Along, int Threads> struct StageSide {
    static constexpr int LINES = Along ? Size : STAGE, GROUPS = (Along ? STAGE : Size) / 8;
    static constexpr int EACH = LINES * GROUPS / Threads;

    // The lines and the group that a thread copies.
    DEVICE int line(int i) { return (i * Threads + (int)threadIdx.x) / GROUPS; }
    DEVICE int group() { return (int)threadIdx.x % GROUPS; }

    // Where a group of a line stands in the tile.
    DEVICE int place(int line, int group) { return (line * GROUPS + (group ^ (Along ? line / 2 % 4 : line % 8))) * 8; }

    // Where the thread's lines begin in memory; null for a line that is not there. Lines of terms change with the stage,
    // others do not.
    template <class Of> DEVICE void find(const T* (&lines)[EACH], i64 first, i64 terms, Of of) {
        if (Along && first > 0) return;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const i64 own = line(i) + (Along ? 0 : first);
            lines[i] = Along || own < terms ? of(own) : nullptr;
        }
    }

    // Starts to copy a stage, with zeros for elements that are not there. `size`: the rows (or columns) that are there.
    // `any` is some address of memory.
    DEVICE void fill(T* tile, const T* const (&lines)[EACH], i64 first, i64 terms, i64 size, const T* any) {
        const i64 at = group() * 8 + (Along ? first : 0);
        const bool within = at < (Along ? terms : size);
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool there = within && lines[i] != nullptr;
            mma::copy(tile + place(line(i), group()), there ? lines[i] + at : any, there);
        }
    }

    // The place from which a thread loads: 16 rows and 16 terms as a left side, or 16 columns and 16 terms as two right
    // sides. A left side's second matrix is of other rows, and its third of other terms; for right sides it is the
    // other way round.
    template <bool Left> DEVICE mma::Place own(const T* tile) {
        const int lane = (int)threadIdx.x % 32, second = lane / 8 % 2, third = lane / 16;
        const int size = Left ? second : third, terms = Left ? third : second;
        return mma::place_of(tile + place(lane % 8 + 8 * (Along ? size : terms), Along ? terms : size));
    }

    // Loads from such a place, moved by rows (or columns) and terms: multiples of 16.
    DEVICE void load(u32 (&to)[4], mma::Place own, int at, int term) {
        if (Along) mma::load(to, (own + at * STAGE * 2) ^ (mma::Place)(term * 2));
        else mma::load_transposed(to, (own + term * Size * 2) ^ (mma::Place)(at * 2));
    }
};

// The sums of a warp: four times 16 rows, four times 8 columns, as `mma::multiply` has them.
typedef float WarpSums[4][4][4];

DEVICE int warp_row() { return (int)threadIdx.x / 128 * 64; }
DEVICE int warp_column() { return (int)threadIdx.x / 32 % 4 * 32; }

// `sums += Σ left(row, term) · right(column, term)`. `left` and `right` give the beginnings of lines; as many rows and
// columns of the tile are there. All threads of the block must come here; `takes` says whether the warp has any sum.
template <int Down, bool LeftAlong, bool RightAlong, class T, class Left, class Right>
DEVICE void multiply_stages(WarpSums& sums, T* memory, i64 terms, Left left, i64 rows, Right right, i64 columns,
                            const T* any, bool takes) {
    typedef StageSide<T, 64 * Down, LeftAlong, 128 * Down> Rows;
    typedef StageSide<T, ACROSS, RightAlong, 128 * Down> Columns;
    constexpr int OF_ROWS = 64 * Down * STAGE, WHOLE = OF_ROWS + ACROSS * STAGE;
    if (terms == 0) return;
    const T* of_rows[Rows::EACH];
    const T* of_columns[Columns::EACH];
    Rows::find(of_rows, 0, terms, left);
    Columns::find(of_columns, 0, terms, right);
    Rows::fill(memory, of_rows, 0, terms, rows, any);
    Columns::fill(memory + OF_ROWS, of_columns, 0, terms, columns, any);
    int stage = 0;
    for (i64 first = 0; first < terms; first += STAGE, stage ^= 1) {
        const i64 next = first + STAGE;
        Rows::find(of_rows, next, terms, left);
        Columns::find(of_columns, next, terms, right);
        mma::wait_for_copies();
        // The stage is there for all, and all have multiplied the other one.
        __syncthreads();
        if (next < terms) {
            T* const other = memory + (stage ^ 1) * WHOLE;
            Rows::fill(other, of_rows, next, terms, rows, any);
            Columns::fill(other + OF_ROWS, of_columns, next, terms, columns, any);
        }
        if (!takes) continue;
        const mma::Place at_rows = Rows::template own<true>(memory + stage * WHOLE);
        const mma::Place at_columns = Columns::template own<false>(memory + stage * WHOLE + OF_ROWS);
        #pragma unroll
        for (int term = 0; term < STAGE; term += 16) {
            u32 of_left[4][4];
            #pragma unroll
            for (int i = 0; i < 4; i++) Rows::load(of_left[i], at_rows, warp_row() + 16 * i, term);
            #pragma unroll
            for (int j = 0; j < 4; j += 2) {
                u32 of_right[4];
                Columns::load(of_right, at_columns, warp_column() + 8 * j, term);
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    mma::multiply<T>(sums[i][j], of_left[i], of_right[0], of_right[1]);
                    mma::multiply<T>(sums[i][j + 1], of_left[i], of_right[2], of_right[3]);
                }
            }
        }
    }
    // Shared memory is free again.
    __syncthreads();
}

// Writes a warp's sums, eight neighbours at a time: they change hands in shared memory. `of` gives the place of a row's neighbours from a column of the tile on; null if they are not there.
template <class T, class Of> DEVICE void write_sums(const WarpSums& sums, T* memory, Of of) {
    constexpr int STEP = 32 + 8;
    const int lane = (int)threadIdx.x % 32;
    float* const own = (float*)memory + threadIdx.x / 32 * 16 * STEP;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        __syncwarp();
        #pragma unroll
        for (int j = 0; j < 8; j++) {
            const Pack<float, 2> pair = {{sums[i][j % 4][j / 4 * 2], sums[i][j % 4][j / 4 * 2 + 1]}};
            store_shared(own + (lane / 4 + j / 4 * 8) * STEP + j % 4 * 8 + lane % 4 * 2, pair);
        }
        __syncwarp();
        #pragma unroll
        for (int j = 0; j < 2; j++) {
            const int row = lane / 4 + j * 8, column = lane % 4 * 8;
            T* const to = of(warp_row() + 16 * i + row, warp_column() + column);
            if (to == nullptr) continue;
            Pack<T, 8> rounded;
            #pragma unroll
            for (int e = 0; e < 8; e++) rounded.at[e] = narrow<T>(own[row * STEP + column + e]);
            store(to, rounded);
        }
    }
}

// A tile of a product: how many tiles stand above it, and to its left.
struct Spot { i32 down, across; };

// The tile with a number, of so many downwards and sidewards. Blocks that run together take 16 tiles downwards and a few
// sidewards: the caches hold these rows and columns.
DEVICE Spot spot(i32 number, i32 down, i32 across) {
    constexpr i32 TOGETHER = 16;
    const i32 first = number / (TOGETHER * across) * TOGETHER, own = number % (TOGETHER * across);
    const i32 height = down - first < TOGETHER ? down - first : TOGETHER;
    return {first + own % height, own / height};
}

// As `multiply_rows`; `K` and `N` are multiples of 8, and tensors are aligned to 16 bytes.
template <i64 Experts, i64 K, i64 N, bool Transposed, int Down, class T>
DEVICE void multiply_rows_mma(const T* x, const T* weights, const i32* order, const i32* starts, T* out) {
    constexpr i64 across = (N + ACROSS - 1) / ACROSS;
    const Spot own = spot((i32)blockIdx.x, (i32)(gridDim.x / across), (i32)across);
    const Tile tile = find<Experts, 64 * Down>(starts, own.down);
    if (tile.expert < 0) return;
    SHARED(mma::Room, memory, (64 * Down + ACROSS) * STAGE * 2 / 128);
    const i64 column = (i64)own.across * ACROSS;
    const i32* const rows = order + tile.first;
    const T* const matrix = weights + (i64)tile.expert * K * N;
    const auto of_row = [&](i64 row) { return row < tile.count ? x + rows[row] * K : nullptr; };
    const auto of_column = [&](i64 at) {
        if (!Transposed) return matrix + at * N + column;
        return column + at < N ? matrix + (column + at) * K : nullptr;
    };
    const bool takes = warp_row() < tile.count && column + warp_column() < N;
    WarpSums sums = {};
    multiply_stages<Down, true, Transposed>(sums, (T*)memory, tile.expert < Experts ? K : 0, of_row, tile.count,
                                            of_column, N - column, x, takes);
    if (!takes) return;
    write_sums(sums, (T*)memory, [&](int row, int at) {
        return row < tile.count && column + at < N ? out + rows[row] * N + column + at : nullptr;
    });
}

// As `sum_of_rows`, but nothing is added to f16 and bf16; `K` and `N` are multiples of 8, and tensors are aligned to 16
// bytes.
template <i64 Experts, i64 K, i64 N, int Down, class T>
DEVICE void sum_of_rows_mma(const T* rows, const T* columns, const i32* order, const i32* starts, T* out, i64) {
    constexpr i64 across = (N + ACROSS - 1) / ACROSS, down = (K + 64 * Down - 1) / (64 * Down);
    SHARED(mma::Room, memory, (64 * Down + ACROSS) * STAGE * 2 / 128);
    const i64 expert = blockIdx.x / (across * down);
    const Spot own = spot((i32)(blockIdx.x % (across * down)), (i32)down, (i32)across);
    const i64 row = (i64)own.down * 64 * Down, column = (i64)own.across * ACROSS;
    const i32* const terms = order + starts[expert];
    const i64 count = starts[expert + 1] - starts[expert];
    const auto of_row = [&](i64 term) { return rows + terms[term] * K + row; };
    const auto of_column = [&](i64 term) { return columns + terms[term] * N + column; };
    const bool takes = row + warp_row() < K && column + warp_column() < N;
    WarpSums sums = {};
    multiply_stages<Down, false, false>(sums, (T*)memory, count, of_row, K - row, of_column, N - column, rows, takes);
    if (!takes) return;
    T* const to = out + (expert * K + row) * N + column;
    write_sums(sums, (T*)memory, [&](int at_row, int at) {
        return row + at_row < K && column + at < N ? to + at_row * N + at : nullptr;
    });
}

}  // namespace experts
