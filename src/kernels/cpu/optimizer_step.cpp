#include "kernels/optimizer_step.h"

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

BRIGADE_BODY float root(float x) { return __builtin_sqrtf(x); }
BRIGADE_BODY float larger(float a, float b) { return a > b || a != a ? a : b; }
// The sign; 0 for NaN, as at::sign.
BRIGADE_BODY float sign_of(float x) {
  return static_cast<float>(x > 0) - static_cast<float>(x < 0);
}

template <bool kDecay>
BRIGADE_BODY float decayed(float grad, float sign, float weight_decay, float param) {
  if constexpr (kDecay) return grad * sign + weight_decay * param;
  return grad * sign;
}

// Bodies: one loop for each optimizer. Template flags leave out what options turn off.
struct SgdPlain {
  template <bool kDecay>
  BRIGADE_BODY static void run(const SgdStep& s, const StepArrays& a) {
    float* __restrict param = a.param;
    const float* __restrict grad = a.grad;
    for (std::size_t i = 0; i < a.size; ++i) {
      param[i] -= s.lr * decayed<kDecay>(grad[i], s.sign, s.weight_decay, param[i]);
    }
  }
};

template <bool kNesterov, bool kFresh>
struct SgdMomentum {
  template <bool kDecay>
  BRIGADE_BODY static void run(const SgdStep& s, const StepArrays& a) {
    float* __restrict param = a.param;
    const float* __restrict grad = a.grad;
    float* __restrict momentum = a.first;
    for (std::size_t i = 0; i < a.size; ++i) {
      const float g = decayed<kDecay>(grad[i], s.sign, s.weight_decay, param[i]);
      const float m = kFresh ? g : momentum[i] * s.momentum + g * s.damping;
      momentum[i] = m;
      param[i] -= s.lr * (kNesterov ? g + m * s.momentum : m);
    }
  }
};

template <bool kMaximum>
struct Adam {
  template <bool kDecay>
  BRIGADE_BODY static void run(const AdamStep& s, const StepArrays& a) {
    float* __restrict param = a.param;
    const float* __restrict grad = a.grad;
    float* __restrict mean = a.first;
    float* __restrict square = a.second;
    float* __restrict maximum = a.third;
    for (std::size_t i = 0; i < a.size; ++i) {
      const float p = param[i] * s.shrink;
      const float g = decayed<kDecay>(grad[i], s.sign, s.weight_decay, p);
      const float m = mean[i] + s.rest1 * (g - mean[i]);
      const float v = square[i] * s.beta2 + s.rest2 * g * g;
      mean[i] = m;
      square[i] = v;
      float largest = v;
      if constexpr (kMaximum) maximum[i] = largest = larger(v, maximum[i]);
      param[i] = p - s.step_size * m / (root(largest) / s.root_correction + s.eps);
    }
  }
};

struct Adagrad {
  template <bool kDecay>
  BRIGADE_BODY static void run(const AdagradStep& s, const StepArrays& a) {
    float* __restrict param = a.param;
    const float* __restrict grad = a.grad;
    float* __restrict sum = a.first;
    for (std::size_t i = 0; i < a.size; ++i) {
      const float g = decayed<kDecay>(grad[i], s.sign, s.weight_decay, param[i]);
      sum[i] += g * g;
      param[i] -= s.step_size * g / (root(sum[i]) + s.eps);
    }
  }
};

template <bool kCentered, bool kMomentum>
struct Rmsprop {
  template <bool kDecay>
  BRIGADE_BODY static void run(const RmspropStep& s, const StepArrays& a) {
    float* __restrict param = a.param;
    const float* __restrict grad = a.grad;
    float* __restrict square = a.first;
    float* __restrict mean = a.second;
    float* __restrict momentum = a.third;
    for (std::size_t i = 0; i < a.size; ++i) {
      const float g = decayed<kDecay>(grad[i], s.sign, s.weight_decay, param[i]);
      float spread = square[i] * s.alpha + s.rest * g * g;
      square[i] = spread;
      if constexpr (kCentered) {
        const float m = mean[i] + s.rest * (g - mean[i]);
        mean[i] = m;
        spread -= m * m;
      }
      float change = g / (root(spread) + s.eps);
      if constexpr (kMomentum) {
        momentum[i] = change = momentum[i] * s.momentum + change;
      }
      param[i] -= s.lr * change;
    }
  }
};

struct Adadelta {
  template <bool kDecay>
  BRIGADE_BODY static void run(const AdadeltaStep& s, const StepArrays& a) {
    float* __restrict param = a.param;
    const float* __restrict grad = a.grad;
    float* __restrict square = a.first;
    float* __restrict changes = a.second;
    for (std::size_t i = 0; i < a.size; ++i) {
      const float g = decayed<kDecay>(grad[i], s.sign, s.weight_decay, param[i]);
      const float v = square[i] * s.rho + s.rest * g * g;
      const float change = root(changes[i] + s.eps) / root(v + s.eps) * g;
      square[i] = v;
      changes[i] = changes[i] * s.rho + s.rest * change * change;
      param[i] -= s.lr * change;
    }
  }
};

struct Adamax {
  template <bool kDecay>
  BRIGADE_BODY static void run(const AdamaxStep& s, const StepArrays& a) {
    float* __restrict param = a.param;
    const float* __restrict grad = a.grad;
    float* __restrict mean = a.first;
    float* __restrict largest = a.second;
    for (std::size_t i = 0; i < a.size; ++i) {
      const float g = decayed<kDecay>(grad[i], s.sign, s.weight_decay, param[i]);
      const float m = mean[i] + s.rest1 * (g - mean[i]);
      const float u = larger(__builtin_fabsf(g) + s.eps, largest[i] * s.beta2);
      mean[i] = m;
      largest[i] = u;
      param[i] -= s.step_size * m / u;
    }
  }
};

struct Rprop {
  template <bool>
  BRIGADE_BODY static void run(const RpropStep& s, const StepArrays& a) {
    float* __restrict param = a.param;
    const float* __restrict grad = a.grad;
    float* __restrict before = a.first;
    float* __restrict size = a.second;
    for (std::size_t i = 0; i < a.size; ++i) {
      const float g = grad[i] * s.sign;
      const float turn = g * before[i];
      float factor = turn > 0 ? s.eta_plus : 1.0f;
      factor = turn < 0 ? s.eta_minus : factor;
      float now = size[i] * factor;
      now = now < s.least ? s.least : now;
      now = now > s.most ? s.most : now;
      const float used = turn < 0 ? 0.0f : g;
      size[i] = now;
      before[i] = used;
      param[i] -= sign_of(used) * now;
    }
  }
};

// ---- instruction sets -------------------------------------------------------------------

template <class Body, class Step, bool kDecay>
void portable(const Step& s, const StepArrays& a) noexcept {
  Body::template run<kDecay>(s, a);
}
template <class Body, class Step, bool kDecay>
BRIGADE_AVX2 void avx2(const Step& s, const StepArrays& a) noexcept {
  Body::template run<kDecay>(s, a);
}
template <class Body, class Step, bool kDecay>
BRIGADE_AVX512 void avx512(const Step& s, const StepArrays& a) noexcept {
  Body::template run<kDecay>(s, a);
}

template <class Body, bool kDecay, class Step>
void run_on(Isa isa, const Step& s, const StepArrays& a) noexcept {
  if (isa == Isa::avx512) return avx512<Body, Step, kDecay>(s, a);
  if (isa == Isa::avx2) return avx2<Body, Step, kDecay>(s, a);
  portable<Body, Step, kDecay>(s, a);
}

template <class Body, class Step>
void run(Isa isa, const Step& s, const StepArrays& a) noexcept {
  if (s.weight_decay != 0) return run_on<Body, true>(isa, s, a);
  run_on<Body, false>(isa, s, a);
}

}  // namespace

void step(const SgdStep& s, const StepArrays& a, Isa isa) noexcept {
  if (a.first == nullptr) return run<SgdPlain>(isa, s, a);
  if (s.nesterov) {
    return s.fresh ? run<SgdMomentum<true, true>>(isa, s, a)
                   : run<SgdMomentum<true, false>>(isa, s, a);
  }
  return s.fresh ? run<SgdMomentum<false, true>>(isa, s, a)
                 : run<SgdMomentum<false, false>>(isa, s, a);
}
void step(const AdamStep& s, const StepArrays& a, Isa isa) noexcept {
  if (a.third != nullptr) return run<Adam<true>>(isa, s, a);
  run<Adam<false>>(isa, s, a);
}
void step(const AdagradStep& s, const StepArrays& a, Isa isa) noexcept {
  run<Adagrad>(isa, s, a);
}
void step(const RmspropStep& s, const StepArrays& a, Isa isa) noexcept {
  if (a.second != nullptr) {
    return a.third != nullptr ? run<Rmsprop<true, true>>(isa, s, a)
                              : run<Rmsprop<true, false>>(isa, s, a);
  }
  return a.third != nullptr ? run<Rmsprop<false, true>>(isa, s, a)
                            : run<Rmsprop<false, false>>(isa, s, a);
}
void step(const AdadeltaStep& s, const StepArrays& a, Isa isa) noexcept {
  run<Adadelta>(isa, s, a);
}
void step(const AdamaxStep& s, const StepArrays& a, Isa isa) noexcept {
  run<Adamax>(isa, s, a);
}
void step(const RpropStep& s, const StepArrays& a, Isa isa) noexcept {
  run_on<Rprop, false>(isa, s, a);
}

}  // namespace brigade::kernels
