// The shared code of the forms of PowerSGD that compress each matrix by itself.
//
// Vocabulary. A *matrix* is a gradient of two or more dimensions, seen as its first
// dimension by the rest. A *group* is one matrix or, with batching, all matrices of one
// shape: M (b, rows, columns), P (b, rows, r), Q (b, columns, r), M ≈ P Qᵀ.
// *Leftovers* are the gradients that go uncompressed.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "codec/low_rank.h"
#include "hooks/low_rank/power_sgd_core.h"

namespace brigade {

// The state kept of one parameter. The spares replace columns of zeros.
struct MatrixMemory {
  low_rank::Residual error;
  at::Tensor q;      // (columns, r): the last step's
  at::Tensor spare;  // the first q
  // With one round: (rows, r), if the last step sent P instead of Q. Its spare follows.
  at::Tensor p;
  at::Tensor spare_p;
  // Second buffer for the error sum, allocated only if steps can be reverted; steps
  // alternate between the two.
  at::Tensor other_sum;
  bool sum_committed = false;  // error.sum must not be changed
};

struct MatrixGroup {
  std::vector<at::Tensor> gradients;
  std::vector<MatrixMemory*> memories;
  at::Tensor m;
  at::Tensor p;
  at::Tensor q;
  // The kernels leave M alone until it is rebuilt, and add M to the stored errors. ATen's
  // operations add the errors to M.
  bool kernels = false;

  int64_t batch() const { return m.size(0); }
  int64_t rows() const { return m.size(1); }
  int64_t columns() const { return m.size(2); }
};

// One flat tensor that holds the given shapes one after the other, and views of them.
struct Packed {
  at::Tensor flat;
  std::vector<at::Tensor> views;
};
Packed pack(const std::vector<std::vector<int64_t>>& shapes,
            const at::TensorOptions& options);

class PowerSGDMatrices : public PowerSGDBase {
 public:
  explicit PowerSGDMatrices(PowerSGDOptions options) : PowerSGDBase("powersgd", options) {}
  HookState state() const override;
  void load_state(const HookState& state) override;
  void reset() override {
    reset_base();
    memory_.clear();
  }
  bool commit() override;
  void revert() override;

 protected:
  struct Plan {
    std::vector<MatrixGroup> groups;  // each with its M
    std::vector<at::Tensor> leftovers;
  };
  Plan plan(const Bucket& bucket);
  int64_t rank_of(int64_t rows, int64_t columns) const {
    return std::min({rows, columns, options_.matrix_approximation_rank});
  }
  // Returns the matrices of the groups that have kernels, with their errors, which are zero
  // at first. To be called once a step.
  low_rank::Matrices matrices_of(const Plan& plan) const;
  low_rank::Matrices matrices_of(const MatrixGroup& group) const;
  // Sets the matrices' P and Q to those that the groups have now.
  static void set_products(const Plan& plan, low_rank::Matrices& matrices);
  static void set_products(const MatrixGroup& group, std::span<low_rank::Matrix> matrices);
  // For groups without kernels: adds the stored errors to M.
  void add_errors(MatrixGroup& group) const;
  // Copies M into the gradients, where these are not M's memory.
  static void write_back(MatrixGroup& group);

 private:
  low_rank::Residual* error_of(MatrixMemory& memory, const at::Tensor& m) const;
  bool pays(int64_t rows, int64_t columns) const;

  std::map<std::string, MatrixMemory> memory_;
  std::map<std::string, MatrixMemory> committed_memory_;
};

// Makes the form with one round.
std::shared_ptr<PowerSGDHook> make_one_round_power_sgd(PowerSGDOptions options);

}  // namespace brigade
