// What libbrigade.so shows to programs that use it. Everything else in it is hidden: each
// class of a public header, and each function that is not defined there, carries the mark.
#pragma once

#define BRIGADE_API [[gnu::visibility("default")]]
