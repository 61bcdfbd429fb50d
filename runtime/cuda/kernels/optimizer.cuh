// The updates of optimizers.
//
// A thread takes a few neighbours of the parameter and of the states at a time. The rates are f64 scalars in memory; what
// follows from them, powers and roots, one thread of a block works out for all.

namespace optimizer {

// The parameter and its states, which may have another type: `Count` tensors in all.
template <class T, class S, int Count> struct Tensors {
    T* parameter;
    S* states[Count - 1];
};

// The numbers of Adam's rule.
template <class C> struct AdamRule {
    // A factor on the parameter: decay that bypasses the moments.
    C keep;
    // The share of the parameter in the gradient: decay that does not.
    C decay;
    C beta1, beta2, rest1, rest2;
    // The learning rate over the first moment's correction.
    C rate;
    // The root of one over the second moment's correction.
    C root;
    C eps;
};

template <bool Decoupled, class C>
DEVICE AdamRule<C> adam_rule(double beta1, double beta2, double eps, double rate, double decay, double step) {
    AdamRule<C> rule;
    rule.keep = (C)(Decoupled ? 1.0 - rate * decay : 1.0);
    rule.decay = (C)(Decoupled ? 0.0 : decay);
    rule.beta1 = (C)beta1;
    rule.beta2 = (C)beta2;
    rule.rest1 = (C)(1.0 - beta1);
    rule.rest2 = (C)(1.0 - beta2);
    rule.rate = (C)(rate / (1.0 - pow(beta1, step)));
    rule.root = (C)(1.0 / sqrt(1.0 - pow(beta2, step)));
    rule.eps = (C)eps;
    return rule;
}

// The gradient with the parameter's share. Without decay an infinite parameter stays as it is: zero times it would be NaN.
template <class C> DEVICE C decayed(C decay, C g, C parameter) { return decay == (C)0 ? g : fma(decay, parameter, g); }

// One element: `x` has the parameter and the moments.
template <class C> DEVICE void apply(const AdamRule<C>& rule, C g, C (&x)[3]) {
    g = decayed(rule.decay, g, x[0]);
    // The sums of products are not left to the compiler: in 8 bits the last bit of a moment can decide its code.
    x[1] = fma(rule.rest1, g, rule.beta1 * x[1]);
    x[2] = fma(rule.rest2 * g, g, rule.beta2 * x[2]);
    x[0] = rule.keep * x[0] - rule.rate * x[1] / (sqrt(x[2]) * rule.root + rule.eps);
}

template <bool Nesterov, class C> struct SgdRule { C rate, decay, momentum; };

// One element: `x` has the parameter and the velocity.
template <bool Nesterov, class C> DEVICE void apply(const SgdRule<Nesterov, C>& rule, C g, C (&x)[2]) {
    g = decayed(rule.decay, g, x[0]);
    x[1] = rule.momentum * x[1] + g;
    x[0] -= rule.rate * (Nesterov ? g + rule.momentum * x[1] : x[1]);
}

template <class C> struct AdagradRule { C rate, decay, eps; };

// One element: `x` has the parameter and the sum of squares.
template <class C> DEVICE void apply(const AdagradRule<C>& rule, C g, C (&x)[2]) {
    g = decayed(rule.decay, g, x[0]);
    x[1] += g * g;
    x[0] -= rule.rate * g / (sqrt(x[1]) + rule.eps);
}

// The numbers of Lion's rule; `keep` is a factor on the parameter, its decay.
template <class C> struct LionRule { C keep, rate, beta1, beta2, rest1, rest2; };

// One element: `x` has the parameter and the momentum. Neither comparison holds of NaN, which stays.
template <class C> DEVICE void apply(const LionRule<C>& rule, C g, C (&x)[2]) {
    const C direction = rule.beta1 * x[1] + rule.rest1 * g;
    const C sign = direction > (C)0 ? (C)1 : direction < (C)0 ? (C)-1 : direction;
    x[0] = rule.keep * x[0] - rule.rate * sign;
    x[1] = rule.beta2 * x[1] + rule.rest2 * g;
}

// `N` neighbours of the gradient, which lies as it likes; `I` counts its elements. `IN_PACKS` says whether these neighbours lie
// beside each other, at an aligned place.
template <class Gradient, class I, int N, bool IN_PACKS, class T> DEVICE Pack<T, N> neighbours(const T* from, i64 first) {
    if (IN_PACKS) return load<N>(from + Gradient::at((I)first));
    Pack<T, N> pack;
#pragma unroll
    for (int e = 0; e < N; e++) pack.at[e] = from[Gradient::at((I)(first + e))];
    return pack;
}

// No copy of the parameter in another type.
struct NoCopy {};
template <class T, int N> DEVICE void put(const NoCopy&, i64, const Pack<T, N>&) {}

// A copy of the parameter in a half type, in the layout `To`, which counts elements in `I`. `IN_PACKS` says whether as many
// neighbours as a thread has lie beside each other there, at an aligned place.
template <class H, class To, class I, bool IN_PACKS> struct Copy { H* to; };
template <class H, class To, class I, bool IN_PACKS, class T, int N>
DEVICE void put(const Copy<H, To, I, IN_PACKS>& copy, i64 first, const Pack<T, N>& parameter) {
    Pack<H, N> half;
#pragma unroll
    for (int e = 0; e < N; e++) half.at[e] = narrow<H>(widen(parameter.at[e]));
    if (IN_PACKS) {
        store(copy.to + To::at((I)first), half);
        return;
    }
#pragma unroll
    for (int e = 0; e < N; e++) copy.to[To::at((I)(first + e))] = half.at[e];
}

// The optional operands of an update: none; the factor of the gradient; this factor, and whether the update is skipped.
struct Always {};
template <class T> struct Scaled { const T* scale; };
template <class T> struct Skippable { const T* scale; const u8* skip; };

template <class C> DEVICE C scale_of(const Always&) { return (C)1; }
template <class C, class T> DEVICE C scale_of(const Scaled<T>& operands) { return widen(*operands.scale); }
template <class C, class T> DEVICE C scale_of(const Skippable<T>& operands) { return widen(*operands.scale); }

// A product that is rounded and not fused with the sum that reads it: a gradient that a kernel of its own had scaled.
#ifdef ON_HOST
template <class C> DEVICE C product(C x, C y) { return x * y; }
#else
DEVICE float product(float x, float y) { return __fmul_rn(x, y); }
DEVICE double product(double x, double y) { return __dmul_rn(x, y); }
#endif

template <class C> DEVICE C scaled(const Always&, C, C g) { return g; }
template <class Operands, class C> DEVICE C scaled(const Operands&, C scale, C g) { return product(scale, g); }

template <class Operands> DEVICE bool is_skipped(const Operands&) { return false; }
template <class T> DEVICE bool is_skipped(const Skippable<T>& operands) { return *operands.skip; }

// Updates `N` neighbours of the parameter and of `States` states.
template <int N, class Rule, class Operands, class C, class T, class S, int States>
DEVICE void apply_all(const Rule& rule, const Operands& operands, C scale, const Pack<T, N>& g, Pack<T, N>& parameter,
                      Pack<S, N> (&states)[States]) {
#pragma unroll
    for (int e = 0; e < N; e++) {
        C x[States + 1];
        x[0] = widen(parameter.at[e]);
#pragma unroll
        for (int t = 0; t < States; t++) x[t + 1] = (C)widen(states[t].at[e]);
        apply(rule, scaled(operands, scale, (C)widen(g.at[e])), x);
        parameter.at[e] = narrow<T>(x[0]);
#pragma unroll
        for (int t = 0; t < States; t++) states[t].at[e] = narrow<S>(x[t + 1]);
    }
}

// Updates all elements, `N` neighbours at a time, and writes the copy. The results may lie where the old numbers do. An update
// that is skipped writes the old numbers.
template <class Gradient, class I, int N, bool IN_PACKS, class Rule, class Operands, class T, class S, int Count, class Copied>
DEVICE void update(const Rule& rule, const Operands& operands, const T* gradient,
                   const Tensors<const T, const S, Count>& from, const Tensors<T, S, Count>& to, const Copied& copy) {
    typedef Computed<T> C;
    const C scale = scale_of<C>(operands);
    const bool skips = is_skipped(operands);
    const i64 step = (i64)gridDim.x * blockDim.x * N;
    for (i64 i = thread_index() * N; i < Gradient::size; i += step) {
        const Pack<T, N> g = neighbours<Gradient, I, N, IN_PACKS>(gradient, i);
        Pack<T, N> parameter = load<N>(from.parameter + i);
        Pack<S, N> states[Count - 1];
#pragma unroll
        for (int t = 0; t < Count - 1; t++) states[t] = load<N>(from.states[t] + i);
        if (!skips) apply_all<N>(rule, operands, scale, g, parameter, states);
        store(to.parameter + i, parameter);
#pragma unroll
        for (int t = 0; t < Count - 1; t++) store(to.states[t] + i, states[t]);
        put(copy, i, parameter);
    }
}

template <bool Decoupled, class Gradient, class I, int N, bool IN_PACKS, class Operands, class T, class S, class Copied>
DEVICE void adam(double beta1, double beta2, double eps, const double* rate, const double* decay, const double* step,
                 const Operands& operands, const T* gradient, const Tensors<const T, const S, 3>& from,
                 const Tensors<T, S, 3>& to, const Copied& copy) {
    typedef Computed<T> C;
    SHARED(AdamRule<C>, rule, 1);
    if (threadIdx.x == 0) *rule = adam_rule<Decoupled, C>(beta1, beta2, eps, *rate, *decay, *step);
    __syncthreads();
    update<Gradient, I, N, IN_PACKS>(*rule, operands, gradient, from, to, copy);
}

template <bool Nesterov, class Gradient, class I, int N, bool IN_PACKS, class Operands, class T, class Copied>
DEVICE void sgd(double momentum, const double* rate, const double* decay, const Operands& operands, const T* gradient,
                const Tensors<const T, const T, 2>& from, const Tensors<T, T, 2>& to, const Copied& copy) {
    typedef Computed<T> C;
    const SgdRule<Nesterov, C> rule = {(C)*rate, (C)*decay, (C)momentum};
    update<Gradient, I, N, IN_PACKS>(rule, operands, gradient, from, to, copy);
}

template <class Gradient, class I, int N, bool IN_PACKS, class Operands, class T, class Copied>
DEVICE void adagrad(double eps, const double* rate, const double* decay, const Operands& operands, const T* gradient,
                    const Tensors<const T, const T, 2>& from, const Tensors<T, T, 2>& to, const Copied& copy) {
    typedef Computed<T> C;
    const AdagradRule<C> rule = {(C)*rate, (C)*decay, (C)eps};
    update<Gradient, I, N, IN_PACKS>(rule, operands, gradient, from, to, copy);
}

template <class Gradient, class I, int N, bool IN_PACKS, class Operands, class T, class Copied>
DEVICE void lion(double beta1, double beta2, const double* rate, const double* decay, const Operands& operands,
                 const T* gradient, const Tensors<const T, const T, 2>& from, const Tensors<T, T, 2>& to, const Copied& copy) {
    typedef Computed<T> C;
    const LionRule<C> rule = {(C)(1.0 - *rate * *decay), (C)*rate, (C)beta1, (C)beta2, (C)(1.0 - beta1), (C)(1.0 - beta2)};
    update<Gradient, I, N, IN_PACKS>(rule, operands, gradient, from, to, copy);
}

}  // namespace optimizer
