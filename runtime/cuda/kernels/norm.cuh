// Layer norm and RMS norm, and their gradients. Rows may be of one type, scale and bias of another. Gradients of scale and bias are summed over the rows of each block here,
// and over the blocks by a reduction.

// `norm` is a function of CUDA's.
namespace norms {

// `(x - mean)·rstd·scale + bias`, with the rows' statistics.
template <class Shape, class C, class T, class P, class R, class S>
DEVICE void layer_norm(const T* x, const P* scale, const P* bias, R* y, S* mean, S* rstd, C eps) {
    const i64 own = Shape::row(blockIdx.x), start = Shape::start(own);
    const auto row = rows::read<Shape>(x + start, own < Shape::ROWS);
    C centre[1], variance[1];
    rows::sum<Shape>(centre, [&](int i, i64 place, C(&sums)[1]) {
        const auto x = rows::pack(row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) sums[0] += x.at[e];
    });
    centre[0] /= (C)Shape::SIZE;
    rows::sum<Shape>(variance, [&](int i, i64 place, C(&sums)[1]) {
        const auto x = rows::pack(row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) sums[0] += (x.at[e] - centre[0]) * (x.at[e] - centre[0]);
    });
    if (own >= Shape::ROWS) return;
    const C factor = (C)1 / (C)sqrt(variance[0] / (C)Shape::SIZE + eps);
    Shape::each([&](int i, i64 place) {
        auto result = rows::pack(row, i, place);
        const auto scales = rows::widen_all(load<Shape::N>(scale + place));
        const auto biases = rows::widen_all(load<Shape::N>(bias + place));
        #pragma unroll
        for (int e = 0; e < Shape::N; e++)
            result.at[e] = (result.at[e] - centre[0]) * factor * scales.at[e] + biases.at[e];
        rows::write(y + start + place, result);
    });
    if (!Shape::is_first()) return;
    mean[own] = narrow<S>(centre[0]);
    rstd[own] = narrow<S>(factor);
}

// `x·rstd·scale`, with the rows' statistic.
template <class Shape, class C, class T, class P, class R, class S>
DEVICE void rms_norm(const T* x, const P* scale, R* y, S* rstd, C eps) {
    const i64 own = Shape::row(blockIdx.x), start = Shape::start(own);
    const auto row = rows::read<Shape>(x + start, own < Shape::ROWS);
    C squares[1];
    rows::sum<Shape>(squares, [&](int i, i64 place, C(&sums)[1]) {
        const auto x = rows::pack(row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) sums[0] += x.at[e] * x.at[e];
    });
    if (own >= Shape::ROWS) return;
    const C factor = (C)1 / (C)sqrt(squares[0] / (C)Shape::SIZE + eps);
    Shape::each([&](int i, i64 place) {
        auto result = rows::pack(row, i, place);
        const auto scales = rows::widen_all(load<Shape::N>(scale + place));
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) result.at[e] *= factor * scales.at[e];
        rows::write(y + start + place, result);
    });
    if (Shape::is_first()) rstd[own] = narrow<S>(factor);
}

// The sums of a block's rows, column by column: `Σ d y·x̂`, and, where rows are `CENTRED`, `Σ d y`. Rows that are held have
// theirs in registers, for each group of threads its own; others where the block's sums go.
template <class Shape, bool CENTRED, class C> struct Columns {
    static constexpr int SUMS = CENTRED ? 2 : 1;
    Pack<C, Shape::N> held[SUMS][Shape::HELD ? Shape::OWN : 1];
    C* sums;
};

template <class Shape, bool CENTRED, class C> DEVICE void clear(Columns<Shape, CENTRED, C>& columns, C* blocks) {
    columns.sums = blocks + (i64)blockIdx.x * (columns.SUMS * Shape::SIZE);
    Shape::each([&](int i, i64 place) {
        #pragma unroll
        for (int s = 0; s < columns.SUMS; s++) {
            const Pack<C, Shape::N> nothing = {};
            if (Shape::HELD) columns.held[s][i] = nothing;
            else store(columns.sums + s * Shape::SIZE + place, nothing);
        }
    });
}

template <class Shape, bool CENTRED, class C>
DEVICE void add(Columns<Shape, CENTRED, C>& columns, int s, int i, i64 place, const Pack<C, Shape::N>& terms) {
    C* const at = columns.sums + s * Shape::SIZE + place;
    Pack<C, Shape::N> sums = Shape::HELD ? columns.held[s][i] : load<Shape::N>(at);
    #pragma unroll
    for (int e = 0; e < Shape::N; e++) sums.at[e] += terms.at[e];
    if (Shape::HELD) columns.held[s][i] = sums;
    else store(at, sums);
}

// Adds up what the groups of a block hold, and writes it.
template <class Shape, bool CENTRED, class C> DEVICE void finish(const Columns<Shape, CENTRED, C>& columns) {
    if (!Shape::HELD) return;
    constexpr i64 SIZE = Shape::SIZE;
    constexpr int GROUPS = Shape::GROUPS;
    // Unrolled, so that the sums stay in registers.
    #pragma unroll
    for (int s = 0; s < columns.SUMS; s++) {
        if (GROUPS == 1) {
            Shape::each([&](int i, i64 place) { store(columns.sums + s * SIZE + place, columns.held[s][i]); });
            continue;
        }
        SHARED(C, of_groups, GROUPS == 1 ? 1 : GROUPS * SIZE);
        C* const own = of_groups + threadIdx.x / (blockDim.x / GROUPS) * SIZE;
        // The sums before these have been read.
        __syncthreads();
        Shape::each([&](int i, i64 place) {
            #pragma unroll
            for (int e = 0; e < Shape::N; e++) own[place + e] = columns.held[s][i].at[e];
        });
        __syncthreads();
        for (int column = threadIdx.x; column < SIZE; column += blockDim.x) {
            C total = (C)0;
            for (int group = 0; group < GROUPS; group++) total += of_groups[group * SIZE + column];
            columns.sums[s * SIZE + column] = total;
        }
    }
}

// With x̂ = (x - mean)·rstd and g = d y·scale: `d x = rstd·(g - mean(g) - x̂·mean(g·x̂))`, where rows are `CENTRED`; else
// with mean and mean(g) zero. If `ADDED`, another gradient is added to the rounded `d x`. The blocks' sums for scale and
// bias go to `blocks`.
template <class Shape, bool CENTRED, bool ADDED, class C, class T, class P, class S, class D, class A, class R>
DEVICE void gradient(
    const T* x, const P* scale, const S* mean, const S* rstd, const D* dy, const A* added, R* dx, C* blocks
) {
    constexpr int SUMS = CENTRED ? 2 : 1;
    Columns<Shape, CENTRED, C> columns;
    clear(columns, blocks);
    // The groups of a block go through as many rounds each, because they wait for each other.
    for (i64 round = blockIdx.x; round * Shape::GROUPS < Shape::ROWS; round += gridDim.x) {
        const i64 own = Shape::row(round), start = Shape::start(own);
        const bool is_there = own < Shape::ROWS;
        // Of two types, perhaps.
        const auto x_row = rows::read<Shape>(x + start, is_there);
        const auto dy_row = rows::read<Shape>(dy + start, is_there);
        const C centre = CENTRED && is_there ? (C)widen(mean[own]) : (C)0;
        const C factor = is_there ? (C)widen(rstd[own]) : (C)0;
        // Means of g·x̂ and of g.
        C means[SUMS];
        rows::sum<Shape>(means, [&](int i, i64 place, C(&sums)[SUMS]) {
            const auto x = rows::pack(x_row, i, place), dy = rows::pack(dy_row, i, place);
            const auto scales = rows::widen_all(load<Shape::N>(scale + place));
            #pragma unroll
            for (int e = 0; e < Shape::N; e++) {
                const C g = dy.at[e] * scales.at[e];
                sums[0] += g * ((x.at[e] - centre) * factor);
                if (CENTRED) sums[SUMS - 1] += g;
            }
        });
        for (int s = 0; s < SUMS; s++) means[s] /= (C)Shape::SIZE;
        Shape::each([&](int i, i64 place) {
            const auto x = rows::pack(x_row, i, place), dy = rows::pack(dy_row, i, place);
            const auto scales = rows::widen_all(load<Shape::N>(scale + place));
            Pack<C, Shape::N> result, terms;
            #pragma unroll
            for (int e = 0; e < Shape::N; e++) {
                const C unit = (x.at[e] - centre) * factor, g = dy.at[e] * scales.at[e];
                result.at[e] = factor * (g - (CENTRED ? means[SUMS - 1] : (C)0) - unit * means[0]);
                terms.at[e] = dy.at[e] * unit;
            }
            if (ADDED && is_there) {
                const auto more = rows::widen_all(load<Shape::N>(added + start + place));
                #pragma unroll
                for (int e = 0; e < Shape::N; e++) result.at[e] = rounded<R>(result.at[e]) + more.at[e];
            }
            if (is_there) rows::write(dx + start + place, result);
            add(columns, 0, i, place, terms);
            if (CENTRED) add(columns, 1, i, place, dy);
        });
    }
    finish(columns);
}

}  // namespace norms
