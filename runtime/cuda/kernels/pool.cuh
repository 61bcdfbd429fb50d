// Pooling over windows that slide over the last dims, a plane. `I` counts elements.
//
// Gradients are gathered: an element of `d x` looks at the windows that cover it.

namespace pool {

// How a window slides along a dim of `Length` elements: position `o` covers `o·Stride + k·Dilation - Before`, k below `Size`.
template <i64 Size, i64 Stride, i64 Dilation, i64 Before, i64 Length, i64 Positions> struct Window {
    static constexpr i64 size = Size, length = Length, positions = Positions;
    static constexpr i64 extent = (Size - 1) * Dilation + 1;
    // The most positions that cover one element.
    static constexpr i64 reach = (extent - 1) / Stride + 1 < Positions ? (extent - 1) / Stride + 1 : Positions;

    // The element that a position covers as its `k`th; -1 in the padding.
    template <class I> DEVICE I element(I position, I k) {
        const I at = position * (I)Stride + k * (I)Dilation - (I)Before;
        return at >= 0 && at < (I)Length ? at : (I)-1;
    }
    // Of the positions that cover an element the one with this number; -1 if there is none.
    template <class I> DEVICE I position(I element, I number) {
        const I end = element + (I)Before, least = end - (I)(extent - 1);
        const I at = (least > 0 ? (least + (I)(Stride - 1)) / (I)Stride : 0) + number;
        const I apart = end - at * (I)Stride;
        return at < (I)Positions && apart >= 0 && apart % (I)Dilation == 0 ? at : (I)-1;
    }
    // The place of an element in the window at a position.
    template <class I> DEVICE I offset(I position, I element) {
        return (element + (I)Before - position * (I)Stride) / (I)Dilation;
    }
    // How many elements a position covers.
    template <class I> DEVICE I covered(I position) {
        const I start = position * (I)Stride - (I)Before;
        const I first = start < 0 ? (-start + (I)(Dilation - 1)) / (I)Dilation : 0;
        const I end = start < (I)Length ? ((I)Length - start + (I)(Dilation - 1)) / (I)Dilation : 0;
        const I last = end < (I)Size ? end : (I)Size;
        return first < last ? last - first : 0;
    }
};

// The same for the dims of a plane together, in row-major order.
template <class... Windows> struct Plane {
    static constexpr i64 size = 1, length = 1, positions = 1, reach = 1;
    template <class I> DEVICE I element(I, I, I before) { return before; }
    template <class I> DEVICE I position(I, I, I before) { return before; }
    template <class I> DEVICE I offset(I, I) { return 0; }
    template <class I> DEVICE I covered(I) { return 1; }
};
template <class Window, class... Windows> struct Plane<Window, Windows...> {
    typedef Plane<Windows...> Inner;
    static constexpr i64 size = Window::size * Inner::size, length = Window::length * Inner::length;
    static constexpr i64 positions = Window::positions * Inner::positions, reach = Window::reach * Inner::reach;

    template <class I> DEVICE I element(I position, I k, I before) {
        const I at = Window::element(position / (I)Inner::positions, k / (I)Inner::size);
        if (at < 0) return -1;
        return Inner::element((I)(position % (I)Inner::positions), (I)(k % (I)Inner::size), (I)(before * (I)Window::length + at));
    }
    template <class I> DEVICE I position(I element, I number, I before) {
        const I at = Window::position(element / (I)Inner::length, number / (I)Inner::reach);
        if (at < 0) return -1;
        return Inner::position((I)(element % (I)Inner::length), (I)(number % (I)Inner::reach),
                               (I)(before * (I)Window::positions + at));
    }
    template <class I> DEVICE I offset(I position, I element) {
        const I own = Window::offset(position / (I)Inner::positions, element / (I)Inner::length);
        return own * (I)Inner::size
               + Inner::offset((I)(position % (I)Inner::positions), (I)(element % (I)Inner::length));
    }
    template <class I> DEVICE I covered(I position) {
        return Window::covered(position / (I)Inner::positions) * Inner::covered((I)(position % (I)Inner::positions));
    }
};

// Loops that are written out in full, so that what they read is read at once.
constexpr i64 UNROLLED = 32;

// Calls for every element of a plane that a position covers, of which a thread takes each `Lanes`th.
template <class Plane, int Lanes, class I, class Use> DEVICE void for_covered(I position, Use use) {
#pragma unroll(Lanes == 1 && Plane::size <= UNROLLED ? Plane::size : 1)
    for (I k = Lanes == 1 ? 0 : threadIdx.x % Lanes; k < (I)Plane::size; k += Lanes) {
        const I at = Plane::element(position, k, (I)0);
        if (at >= 0) use(at);
    }
}

// What the sum over a window is divided by.
template <class Plane, bool CountPadding, class C, class I> DEVICE C divisor(I position) {
    if (CountPadding) return (C)Plane::size;
    const I covered = Plane::covered(position);
    return (C)(covered > 1 ? covered : 1);
}

// The largest element and its place in the plane, -1 if there is none.
template <class C, class I> struct Found { I at; C x; };

// The first of the largest; a NaN is larger than any number.
template <class C, class I> DEVICE Found<C, I> first_largest(Found<C, I> one, Found<C, I> other) {
    if (one.at < 0 || other.at < 0) return one.at < 0 ? other : one;
    const bool is_nan = one.x != one.x, other_is_nan = other.x != other.x;
    const bool equal = is_nan || other_is_nan ? is_nan == other_is_nan : one.x == other.x;
    if (equal) return one.at < other.at ? one : other;
    return is_nan || one.x > other.x ? one : other;
}

// The largest that a position covers; all of its threads get it.
template <class Plane, int Lanes, class I, class T> DEVICE Found<Computed<T>, I> largest(const T* x, I position) {
    typedef Found<Computed<T>, I> Of;
    Of best = {(I)-1, -INFINITY};
    for_covered<Plane, Lanes>(position, [&](I at) {
        const Computed<T> own = widen(x[at]);
        // Places only grow.
        if (best.at < 0 || own > best.x || (own != own && best.x == best.x)) best = {at, own};
    });
    for (int offset = Lanes / 2; offset > 0; offset /= 2) {
        const I at = __shfl_xor_sync(0xffffffffu, best.at, offset);
        best = first_largest(best, Of{at, __shfl_xor_sync(0xffffffffu, best.x, offset)});
    }
    return best;
}

// The number of a result among all, `Lanes` threads a result; what there is no result for takes the last.
template <int Lanes, i64 Count, class I> DEVICE I own_result() {
    const i64 own = thread_index() / Lanes;
    return (I)(own < Count ? own : Count - 1);
}
// Whether the thread writes it.
template <int Lanes, i64 Count> DEVICE bool writes() {
    return thread_index() / Lanes < Count && threadIdx.x % Lanes == 0;
}

// Calls with each result's number, its position and the largest element there. NVRTC 12.8 and 13.0 refuse a lambda with
// a parameter of type `auto` in device code, so the callers write the type out.
template <class Plane, i64 Planes, int Lanes, class I, class T, class Use> DEVICE void with_largest(const T* x, Use use) {
    constexpr i64 count = Planes * Plane::positions;
    const I own = own_result<Lanes, count, I>(), plane = own / (I)Plane::positions;
    const I position = own % (I)Plane::positions;
    const Found<Computed<T>, I> found = largest<Plane, Lanes>(x + (i64)plane * Plane::length, position);
    if (writes<Lanes, count>()) use(own, position, found);
}

template <class Plane, i64 Planes, int Lanes, class I, class T> DEVICE void max_pool(const T* x, T* y) {
    with_largest<Plane, Planes, Lanes, I>(x, [&](I own, I, Found<Computed<T>, I> found) { y[own] = narrow<T>(found.x); });
}

template <class Plane, i64 Planes, int Lanes, class I, class T, class To>
DEVICE void max_pool_indices(const T* x, To* places) {
    with_largest<Plane, Planes, Lanes, I>(x, [&](I own, I, Found<Computed<T>, I> found) { places[own] = (To)found.at; });
}

// Places in the window instead of the plane; 0 if there is none.
template <class Plane, i64 Planes, int Lanes, class I, class T>
DEVICE void max_pool_offsets(const T* x, u8* offsets) {
    with_largest<Plane, Planes, Lanes, I>(x, [&](I own, I position, Found<Computed<T>, I> found) {
        offsets[own] = (u8)(found.at < 0 ? (I)0 : Plane::offset(position, found.at));
    });
}

template <class Plane, i64 Planes, int Lanes, bool CountPadding, class I, class T>
DEVICE void avg_pool(const T* x, T* y) {
    typedef Computed<T> C;
    constexpr i64 count = Planes * Plane::positions;
    const I own = own_result<Lanes, count, I>(), plane = own / (I)Plane::positions;
    const I position = own % (I)Plane::positions;
    const T* const start = x + (i64)plane * Plane::length;
    C sum = (C)0;
    for_covered<Plane, Lanes>(position, [&](I at) { sum += widen(start[at]); });
    if (Lanes == 32) sum = over_warp<Sum>(sum);
    if (writes<Lanes, count>()) y[own] = narrow<T>(sum / divisor<Plane, CountPadding, C>(position));
}

// Calls for every position that covers an element.
template <class Plane, class I, class Use> DEVICE void for_covering(I element, Use use) {
#pragma unroll(Plane::reach <= UNROLLED ? Plane::reach : 1)
    for (I number = 0; number < (I)Plane::reach; number++) {
        const I at = Plane::position(element, number, (I)0);
        if (at >= 0) use(at);
    }
}

// Adds up, for the thread's element, the gradients of the positions that have it as their largest.
template <class Plane, i64 Planes, class I, class T, class IsLargest>
DEVICE void gather_gradients(const T* dy, T* dx, IsLargest is_largest) {
    typedef Computed<T> C;
    const i64 own = thread_index();
    if (own >= Planes * Plane::length) return;
    const I plane = (I)own / (I)Plane::length, element = (I)own % (I)Plane::length;
    C sum = (C)0;
    for_covering<Plane>(element, [&](I position) {
        const i64 at = (i64)plane * Plane::positions + position;
        if (is_largest(at, position, element)) sum += widen(dy[at]);
    });
    dx[own] = narrow<T>(sum);
}

template <class Plane, i64 Planes, class I, class T>
DEVICE void max_pool_grad(const I* places, const T* dy, T* dx) {
    gather_gradients<Plane, Planes, I>(dy, dx, [&](i64 at, I, I element) { return places[at] == element; });
}

template <class Plane, i64 Planes, class I, class T>
DEVICE void max_pool_grad_at(const u8* offsets, const T* dy, T* dx) {
    gather_gradients<Plane, Planes, I>(dy, dx, [&](i64 at, I position, I element) {
        return (I)offsets[at] == Plane::offset(position, element);
    });
}

template <class Plane, i64 Planes, bool CountPadding, class I, class T> DEVICE void avg_pool_grad(const T* dy, T* dx) {
    typedef Computed<T> C;
    const i64 own = thread_index();
    if (own >= Planes * Plane::length) return;
    const I plane = (I)own / (I)Plane::length, element = (I)own % (I)Plane::length;
    C sum = (C)0;
    for_covering<Plane>(element, [&](I position) {
        const C d = widen(dy[(i64)plane * Plane::positions + position]);
        sum += d / divisor<Plane, CountPadding, C>(position);
    });
    dx[own] = narrow<T>(sum);
}

}  // namespace pool
