// Batch norm of x[n, c, ..]: statistics of each channel, normalization by them, the gradient.
//
// Sums over a channel are made in two launches: blocks sum slices of it, which they hold in registers, and leave what they
// found in scratch; then a block a channel puts the slices together.

namespace batch_norm {

// A dense tensor: `Plane` elements of a channel stand together, `Samples` times. The elements of a channel are counted
// sample by sample.
template <i64 Samples, i64 Channels, i64 Plane> struct Shape {
    static constexpr i64 channels = Channels;
    static constexpr i64 plane = Plane;
    static constexpr i64 count = Samples * Plane;
    static constexpr i64 size = count * Channels;

    DEVICE i64 at(i64 channel, i64 element) {
        return (element / Plane * Channels + channel) * Plane + element % Plane;
    }
};

// How channels are cut: slices of so many elements. Each thread takes `Packs` times `N` neighbours of its channel; the
// threads of a block have one channel or, where planes are small, `Lanes` neighbouring ones.
template <class Shape, i64 Elements, int Lanes, int N, int Packs> struct Slices {
    typedef Shape Of;
    static constexpr i64 elements = Elements;
    static constexpr int lanes = Lanes, width = N, packs = Packs;
    static constexpr i64 count = (Shape::count + Elements - 1) / Elements;

    // The elements of a slice.
    DEVICE i64 length(i64 slice) {
        const i64 left = Shape::count - slice * Elements;
        return left < Elements ? left : Elements;
    }
};

// What a thread takes.
template <class Slices> struct Share {
    typedef typename Slices::Of Shape;
    i64 channel, slice;

    // Where its pack of this number begins, counted in the slice.
    DEVICE i64 first(int pack) {
        const i64 thread = threadIdx.x / Slices::lanes, threads = blockDim.x / Slices::lanes;
        return (thread + pack * threads) * Slices::width;
    }
};

template <class Slices> DEVICE Share<Slices> share() {
    const i64 group = blockIdx.x / Slices::count;
    return {group * Slices::lanes + threadIdx.x % Slices::lanes, blockIdx.x % Slices::count};
}

// Calls with the number of each pack of the thread's and where it stands in memory.
template <class Slices, class Use> DEVICE void for_packs(const Share<Slices>& own, Use use) {
    typedef typename Slices::Of Shape;
    const i64 length = own.channel < Shape::channels ? Slices::length(own.slice) : 0;
#pragma unroll
    for (int pack = 0; pack < Slices::packs; pack++) {
        const i64 first = Share<Slices>::first(pack);
        if (first < length) use(pack, Shape::at(own.channel, own.slice * Slices::elements + first));
    }
}

// The sum of what the threads of a channel have; each of them gets it.
template <int Lanes, class C> DEVICE C sum_of_channel(C x) {
    if constexpr (Lanes == 1) {
        return sum_over_block(x);
    } else {
        SHARED(C, of_threads, 256);
        // What an earlier call left there has been read.
        __syncthreads();
        of_threads[threadIdx.x] = x;
        __syncthreads();
        C sum = (C)0;
        for (u32 i = threadIdx.x % Lanes; i < blockDim.x; i += Lanes) sum += of_threads[i];
        return sum;
    }
}

// Leaves two numbers of a slice in scratch.
template <class Slices, class C> DEVICE void leave(const Share<Slices>& own, C* scratch, C first, C second) {
    if (threadIdx.x >= Slices::lanes || own.channel >= Slices::Of::channels) return;
    C* const at = scratch + (own.channel * Slices::count + own.slice) * 2;
    at[0] = first;
    at[1] = second;
}

// The mean of a slice, and the sum of the squares of the distances from it.
template <class Slices, class T> DEVICE void statistics_of_slices(const T* x, Computed<T>* scratch) {
    typedef Computed<T> C;
    const Share<Slices> own = share<Slices>();
    Pack<T, Slices::width> held[Slices::packs];
    C sum = (C)0;
    for_packs(own, [&](int pack, i64 at) {
        held[pack] = load<Slices::width>(x + at);
        for (int e = 0; e < Slices::width; e++) sum += widen(held[pack].at[e]);
    });
    const C mean = sum_of_channel<Slices::lanes>(sum) / (C)Slices::length(own.slice);
    C squares = (C)0;
    for_packs(own, [&](int pack, i64) {
        for (int e = 0; e < Slices::width; e++) {
            const C apart = widen(held[pack].at[e]) - mean;
            squares += apart * apart;
        }
    });
    leave(own, scratch, mean, sum_of_channel<Slices::lanes>(squares));
}

// A block a channel: slices put together (Chan, Golub and LeVeque: Updating formulae and a pairwise algorithm for computing
// sample variances, 1979).
template <class Slices, class C, class T> DEVICE void statistics(const C* scratch, T* mean, T* variance, T* unbiased) {
    const i64 channel = blockIdx.x, count = Slices::Of::count;
    const C* const of_slices = scratch + channel * Slices::count * 2;
    C sum = (C)0, squares = (C)0;
    for (i64 i = threadIdx.x; i < Slices::count; i += blockDim.x) sum += (C)Slices::length(i) * of_slices[2 * i];
    const C centre = sum_over_block(sum) / (C)count;
    for (i64 i = threadIdx.x; i < Slices::count; i += blockDim.x) {
        const C apart = of_slices[2 * i] - centre;
        squares += of_slices[2 * i + 1] + (C)Slices::length(i) * apart * apart;
    }
    squares = sum_over_block(squares);
    if (threadIdx.x > 0) return;
    mean[channel] = narrow<T>(centre);
    variance[channel] = narrow<T>(squares / (C)count);
    unbiased[channel] = narrow<T>(squares / (C)(count > 1 ? count - 1 : 1));
}

// `1 / √(variance + eps)` of a channel.
template <class T> DEVICE Computed<T> reciprocal_deviation(const T* variance, i64 channel, double eps) {
    return (Computed<T>)1 / sqrt(widen(variance[channel]) + (Computed<T>)eps);
}

// `y = (x - mean)·scale / √(variance + eps) + bias`, `N` neighbours a thread.
template <class Shape, int N, class I, class T>
DEVICE void normalize(const T* x, const T* mean, const T* variance, const T* scale, const T* bias, T* y, double eps) {
    typedef Computed<T> C;
    const I first = (I)thread_index() * N;
    if (first >= (I)Shape::size) return;
    Pack<T, N> pack = load<N>(x + first);
    C centre, factor, offset;
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (e == 0 || Shape::plane % N != 0) {
            const i64 channel = (first + e) / (I)Shape::plane % (I)Shape::channels;
            centre = widen(mean[channel]);
            factor = reciprocal_deviation(variance, channel, eps) * widen(scale[channel]);
            offset = widen(bias[channel]);
        }
        pack.at[e] = narrow<T>((widen(pack.at[e]) - centre) * factor + offset);
    }
    store(y + first, pack);
}

// `d x`, and of a slice `Σ d y` and `Σ d y·(x - mean)`.
template <class Slices, class T>
DEVICE void gradient_of_slices(const T* x, const T* mean, const T* variance, const T* scale, const T* dy, T* dx,
                               Computed<T>* scratch, double eps) {
    typedef Computed<T> C;
    constexpr int N = Slices::width;
    const Share<Slices> own = share<Slices>();
    C centre = (C)0, factor = (C)0, total = (C)0, dot = (C)0;
    if (own.channel < Slices::Of::channels) {
        centre = widen(mean[own.channel]);
        factor = reciprocal_deviation(variance, own.channel, eps) * widen(scale[own.channel]);
    }
    for_packs(own, [&](int, i64 at) {
        const Pack<T, N> of_x = load<N>(x + at), of_dy = load<N>(dy + at);
        Pack<T, N> of_dx;
        for (int e = 0; e < N; e++) {
            const C d = widen(of_dy.at[e]);
            of_dx.at[e] = narrow<T>(d * factor);
            total += d;
            dot += d * (widen(of_x.at[e]) - centre);
        }
        store(dx + at, of_dx);
    });
    total = sum_of_channel<Slices::lanes>(total);
    leave(own, scratch, total, sum_of_channel<Slices::lanes>(dot));
}

// A block a channel. With r = 1/√(variance + eps): `d mean = -r·scale·Σ d y`,
// `d variance = -½·r³·scale·Σ d y·(x - mean)`, `d scale = r·Σ d y·(x - mean)`, `d bias = Σ d y`.
template <class Slices, class C, class T>
DEVICE void gradient(const C* scratch, const T* variance, const T* scale, T* dmean, T* dvariance, T* dscale, T* dbias,
                     double eps) {
    const i64 channel = blockIdx.x;
    const C* const of_slices = scratch + channel * Slices::count * 2;
    C total = (C)0, dot = (C)0;
    for (i64 i = threadIdx.x; i < Slices::count; i += blockDim.x) {
        total += of_slices[2 * i];
        dot += of_slices[2 * i + 1];
    }
    total = sum_over_block(total);
    dot = sum_over_block(dot);
    if (threadIdx.x > 0) return;
    const C r = reciprocal_deviation(variance, channel, eps), factor = r * widen(scale[channel]);
    dmean[channel] = narrow<T>(-factor * total);
    dvariance[channel] = narrow<T>((C)-0.5 * r * r * factor * dot);
    dscale[channel] = narrow<T>(r * dot);
    dbias[channel] = narrow<T>(total);
}

}  // namespace batch_norm
