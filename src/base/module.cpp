#include "base/module.h"

#include <dlfcn.h>
#include <unistd.h>

namespace brigade::base {
namespace {

// The folder of the library, program or Python module with this function; ends with a
// slash.
std::string own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&load_module), &info) || !info.dli_fname)
    return "";
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

}  // namespace

void* Module::symbol(const char* name) const {
  return handle ? dlsym(handle, name) : nullptr;
}

Module load_module(const std::string& name) {
  const std::string file = "lib" + name + ".so";
  const std::string beside = own_folder() + file;
  const std::string path = access(beside.c_str(), F_OK) == 0 ? beside : file;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle) return {handle, ""};
  const char* text = dlerror();
  const std::string why = text ? text : path;
  // If another file is named, a library that this module needs is missing.
  if (path == file && why.starts_with(file + ": cannot open"))
    return {nullptr,
            "its module " + file + " is not there (built without a CUDA toolkit?)"};
  return {nullptr, "its module cannot be loaded: " + why};
}

}  // namespace brigade::base
