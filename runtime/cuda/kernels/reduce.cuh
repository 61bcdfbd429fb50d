// Reductions over any dims of any layout.

namespace reduce {

// Terms that are added up one after the other, at most: sums of these are added up again, so that little is lost.
constexpr i64 RUN = 64;

// A combined number becomes a result; `adds` it to what is there.
template <class T, class C> DEVICE void put(T* to, C x, C factor, i64 adds) {
    x = (C)(x * factor);
    *to = narrow<T>(adds ? (C)(widen(*to) + x) : x);
}

// The elements `first, first + step, …` of `Gone`, combined.
template <class Combine, class Gone, class C, class T> DEVICE C run(const T* start, i64 first, i64 step) {
    C total = Combine::nothing((C)widen(start[0]));
    for (i64 i = first; i < Gone::size;) {
        C x = Combine::nothing((C)widen(start[0]));
        for (i64 n = 0; n < RUN && i < Gone::size; n++, i += step) x = Combine::of(x, (C)widen(start[Gone::at(i)]));
        total = Combine::of(total, x);
    }
    return total;
}

// One block an element of the result: `Kept` has the operand's layout along the dims that stay, `Gone` along those that
// go, `To` the result's.
template <class Combine, class Kept, class Gone, class To, class C, class T>
DEVICE void by_block(const T* from, T* to, C factor, i64 adds) {
    const i64 own = blockIdx.x;
    const C x = over_block<Combine>(run<Combine, Gone, C>(from + Kept::at(own), (i64)threadIdx.x, (i64)blockDim.x));
    if (threadIdx.x == 0) put(to + To::at(own), x, factor, adds);
}

// One thread an element of the result.
template <class Combine, class Kept, class Gone, class To, class C, class T>
DEVICE void by_thread(const T* from, T* to, C factor, i64 adds) {
    const i64 own = thread_index();
    if (own < Kept::size) put(to + To::at(own), run<Combine, Gone, C>(from + Kept::at(own), 0, 1), factor, adds);
}

}  // namespace reduce
