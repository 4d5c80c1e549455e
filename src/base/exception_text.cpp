#include "base/exception_text.h"

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <cstdlib>
#include <typeinfo>

#include "brigade/error.h"

namespace brigade::base {
namespace {

std::string type_name(const std::type_info& type) {
  int status = 0;
  char* text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : type.name();
  std::free(text);
  return name;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// NCCL's texts begin with a source location in LibTorch and the kind of error, and have the
// reason at their end.
std::string cause_of_nccl(const std::string& text) {
  const size_t kind = text.find(", ");
  if (kind == std::string::npos) return first_line(text);
  std::string cause = "NCCL: " + first_line(text.substr(kind + 2));
  const std::string last_error = "Last error:";
  if (const size_t last = text.find(last_error); last != std::string::npos) {
    const size_t begin = text.find_first_not_of(" \n", last + last_error.size());
    if (begin != std::string::npos) cause += ": " + first_line(text.substr(begin));
  }
  return cause;
}

}  // namespace

std::string text_of(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch ? torch->what_without_backtrace() : error.what();
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return text_of(exception);
  } catch (...) {
    return "an exception of unknown type";
  }
}

std::string cause_of(const std::exception& error) {
  std::string text = text_of(error);
  if (auto end = text.find("] "); text.starts_with("[/") && end != std::string::npos) {
    text.erase(0, end + 2);
  }
  return text.starts_with("NCCL error in: ") ? cause_of_nccl(text) : first_line(text);
}

std::string describe(const std::exception& error) {
  return type_name(typeid(error)) + ": " + text_of(error);
}

std::string report_of(const std::exception& error) {
  return dynamic_cast<const Error*>(&error) ? error.what() : describe(error);
}

}  // namespace brigade::base
