// What exceptions say to people. LibTorch's texts carry a C++ stack trace of dozens of
// lines behind them; it is never shown.
#pragma once
#include <exception>
#include <string>

namespace brigade::base {

// The whole text.
std::string text_of(const std::exception& error);
std::string text_of(const std::exception_ptr& error);

// The first line, without the place in gloo's or LibTorch's sources that some texts begin
// with; of NCCL's also what NCCL itself says at their end.
std::string cause_of(const std::exception& error);

// "Type: text".
std::string describe(const std::exception& error);

// The text of an error of our own, whose type says nothing more to a user; "Type: text" of
// any other.
std::string report_of(const std::exception& error);

}  // namespace brigade::base
