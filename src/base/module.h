// Parts of the library that are files of their own, loaded when they are first needed: what
// CUDA's names are in, so that the library starts quickly and runs where CUDA is not.
#pragma once
#include <string>

namespace brigade::base {

struct Module {
  void* handle = nullptr;
  // Why it could not be loaded, if `handle` is null.
  std::string reason;
  // Of a function in it, or null.
  void* symbol(const char* name) const;
};

// Loads libNAME.so, which lies beside the library, program or Python module that this
// function is in, or on its run path. Never unloaded: LibTorch's CUDA part cannot be.
Module load_module(const std::string& name);

}  // namespace brigade::base
