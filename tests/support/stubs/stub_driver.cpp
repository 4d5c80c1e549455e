// A stub of NVIDIA's driver, for programs that ask whether it is there: libcuda.so.1 on
// LD_LIBRARY_PATH. Environment variables set its answers:
//   STUB_CUINIT   what cuInit returns; 0 without it
//   STUB_VERSION  the newest CUDA it can run, as 12040 for 12.4; 13000 without it
//   STUB_DEVICES  how many GPUs there are; 1 without it
// Nothing can be computed with it.
#include <cstdlib>
#include <cstring>

namespace {

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return number("STUB_CUINIT", 0); }

int cuDriverGetVersion(int* version) {
  *version = number("STUB_VERSION", 13000);
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = number("STUB_DEVICES", 1);
  return 0;
}

int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "stub GPU", static_cast<size_t>(length));
  return 0;
}

int cuGetErrorString(int, const char** text) {
  *text = "what the driver says";
  return 0;
}

}  // extern "C"
