// Softmax along any dim, its logarithm, its gradient. The result may lie where an operand does: a thread writes the
// elements that it alone reads, after all of its row has been read.

namespace softmax {

template <class Shape, class C, class T> DEVICE C largest(const rows::Row<Shape, T>& row) {
    C largest[1] = {-(C)INFINITY};
    Shape::each([&](int i, i64 place) {
        const auto x = rows::pack(row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) largest[0] = larger(largest[0], x.at[e]);
    });
    Shape::template over<Largest>(largest);
    return largest[0];
}

// `eˣ / Σ eˣ`
template <class Shape, class C, class T> DEVICE void softmax(const T* x, T* y) {
    const i64 own = Shape::row(blockIdx.x), start = Shape::start(own);
    auto row = rows::read<Shape>(x + start, own < Shape::ROWS);
    const C shift = largest<Shape, C>(row);
    C total[1];
    rows::sum<Shape>(total, [&](int i, i64 place, C(&sums)[1]) {
        auto powers = rows::pack(row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) sums[0] += powers.at[e] = (C)exp(powers.at[e] - shift);
        if (Shape::HELD) row.held[i] = powers;
    });
    if (own >= Shape::ROWS) return;
    const C factor = (C)1 / total[0];
    Shape::each([&](int i, i64 place) {
        auto result = rows::pack(row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++)
            result.at[e] = factor * (Shape::HELD ? result.at[e] : (C)exp(result.at[e] - shift));
        rows::write(y + start + place, result);
    });
}

// `x - log Σ eˣ`
template <class Shape, class C, class T> DEVICE void log_softmax(const T* x, T* y) {
    const i64 own = Shape::row(blockIdx.x), start = Shape::start(own);
    const auto row = rows::read<Shape>(x + start, own < Shape::ROWS);
    const C shift = largest<Shape, C>(row);
    C total[1];
    rows::sum<Shape>(total, [&](int i, i64 place, C(&sums)[1]) {
        const auto x = rows::pack(row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) sums[0] += (C)exp(x.at[e] - shift);
    });
    if (own >= Shape::ROWS) return;
    const C beyond = (C)log(total[0]);
    Shape::each([&](int i, i64 place) {
        auto result = rows::pack(row, i, place);
        // Both are subtracted by themselves: their sum would have lost what the logarithm says.
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) result.at[e] = result.at[e] - shift - beyond;
        rows::write(y + start + place, result);
    });
}

// `y·(d y - Σ y·d y)`; zeros where all of `d y` is zero, also of a row of NaN.
template <class Shape, class C, class T> DEVICE void gradient(const T* y, const T* dy, T* dx) {
    const i64 own = Shape::row(blockIdx.x), start = Shape::start(own);
    const bool is_there = own < Shape::ROWS;
    const auto y_row = rows::read<Shape>(y + start, is_there);
    const auto dy_row = rows::read<Shape>(dy + start, is_there);
    // Σ y·d y, and how many of `d y` are not zero.
    C found[2];
    rows::sum<Shape>(found, [&](int i, i64 place, C(&sums)[2]) {
        const auto y = rows::pack(y_row, i, place), dy = rows::pack(dy_row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++) {
            sums[0] += y.at[e] * dy.at[e];
            sums[1] += dy.at[e] != 0 ? (C)1 : (C)0;
        }
    });
    if (!is_there) return;
    Shape::each([&](int i, i64 place) {
        const auto y = rows::pack(y_row, i, place);
        auto result = rows::pack(dy_row, i, place);
        #pragma unroll
        for (int e = 0; e < Shape::N; e++)
            result.at[e] = found[1] > 0 ? y.at[e] * (result.at[e] - found[0]) : (C)0;
        rows::write(dx + start + place, result);
    });
}

}  // namespace softmax
