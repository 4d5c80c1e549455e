// Texts of exceptions for people. LibTorch's texts end with a C++ stack trace of dozens of
// lines, which is never shown.
#pragma once
#include <exception>
#include <string>

namespace brigade::base {

// The whole text.
std::string text_of(const std::exception& error);
std::string text_of(const std::exception_ptr& error);

// The first line, without the source location that some texts of gloo and LibTorch begin
// with; for NCCL's texts, also NCCL's own message at their end.
std::string cause_of(const std::exception& error);

// "Type: text".
std::string describe(const std::exception& error);

// The text of one of our own errors, where the type would add nothing for a user; "Type:
// text" for any other.
std::string report_of(const std::exception& error);

}  // namespace brigade::base
