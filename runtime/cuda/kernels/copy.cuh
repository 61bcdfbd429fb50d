// Copies between layouts, and sums over microbatches.

// `to[i] = from[i]` for the elements of two layouts, one a thread, in the order in which the result lies.
template <class From, class To, class I, class T> DEVICE void copy(const T* from, T* to) {
    const I i = (I)thread_index();
    if (i < (I)From::size) to[To::at(i)] = from[From::at(i)];
}

// `to[i] += from[i]`, or, unless `adds`, `to[i] = from[i]`.
template <class From, class To, class I, class T> DEVICE void accumulate(const T* from, T* to, i64 adds) {
    const I i = (I)thread_index();
    if (i >= (I)From::size) return;
    T* const at = to + To::at(i);
    const T x = from[From::at(i)];
    *at = adds ? narrow<T>(widen(*at) + widen(x)) : x;
}
