// SPDX-License-Identifier: BSD-3-Clause
// What libbrigade.so shows to programs that use it. Everything else in it is hidden: each
// class of a public header, and each function that is not defined there, carries the mark.
#pragma once

#if __cplusplus < 202002L
#error "Brigade needs C++20: compile with -std=c++20, or set CMAKE_CXX_STANDARD to 20"
#endif

#define BRIGADE_API [[gnu::visibility("default")]]
