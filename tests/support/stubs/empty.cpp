// A library needs a function.
extern "C" int brigade_stub() { return 0; }
