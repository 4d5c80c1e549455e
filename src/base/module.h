// Loads parts of the library from files of their own when they are first needed. Code that
// needs CUDA is in such files, so that the library starts quickly and runs without CUDA.
#pragma once
#include <string>

namespace brigade::base {

struct Module {
  void* handle = nullptr;
  // Why it could not be loaded, if `handle` is null.
  std::string reason;
  // The address of a function in it, or null.
  void* symbol(const char* name) const;
};

// Loads libNAME.so from the folder of the library, program or Python module with this
// function, or from its run path. It is never unloaded, because LibTorch's CUDA part cannot
// be.
Module load_module(const std::string& name);

}  // namespace brigade::base
