// The file format: written data can be read back, here and in Python; incomplete files are
// refused; a kill, or a full disk, leaves the last good file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "brigade/checkpoint.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade::testing {
namespace {

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}
void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
// A file with this header and data.
void craft(const std::string& path, const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  write_bytes(path, std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
}
std::string refusal(const std::string& path, Checksums mode = Checksums::if_present) {
  try {
    load_safetensors(path, mode);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "it was accepted";
}
void expect_refused(const std::string& path, const std::string& why) {
  EXPECT_NE(refusal(path).find(why), std::string::npos) << refusal(path);
}

const std::vector<at::ScalarType> kAllDtypes{at::kBool,
                                             at::kByte,
                                             at::kChar,
                                             at::kShort,
                                             at::kUInt16,
                                             at::kInt,
                                             at::kUInt32,
                                             at::kLong,
                                             at::kUInt64,
                                             at::kHalf,
                                             at::kBFloat16,
                                             at::kFloat,
                                             at::kDouble,
                                             at::kComplexFloat,
                                             at::kFloat8_e4m3fn,
                                             at::kFloat8_e5m2,
                                             at::kFloat8_e4m3fnuz,
                                             at::kFloat8_e5m2fnuz,
                                             at::kFloat8_e8m0fnu};

// The bytes 0, 1, 0, 1 … seen as the dtype: every such value is valid.
at::Tensor pattern(at::ScalarType dtype, std::vector<int64_t> shape) {
  at::Tensor tensor = at::empty(shape, dtype);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = i % 2;
  return tensor;
}
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.nbytes() == 0 ||
          std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}
SafetensorsFile every_dtype() {
  SafetensorsFile file{.metadata = {{"key", "value \"quoted\" ü\n"}, {"", "empty name"}}};
  for (at::ScalarType dtype : kAllDtypes)
    file.tensors[at::toString(dtype)] = pattern(dtype, {3, 5});
  file.tensors["scalar"] = pattern(at::kFloat, {});
  file.tensors["none"] = pattern(at::kFloat, {0, 4});
  file.tensors["a \"name\" \\ with ü"] = pattern(at::kLong, {1});
  return file;
}
SafetensorsFile small_file(float value = 1) {
  return {.tensors = {{"w", at::full({3}, value)}, {"b", at::full({2}, 2, at::kByte)}},
          .metadata = {{"step", "7"}}};
}

TEST(Safetensors, WhatIsWrittenComesBackForEveryDtype) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup) {
    const std::string path = folder.path() + "/all.safetensors";
    const SafetensorsFile written = every_dtype();
    save_safetensors(path, written);
    const SafetensorsFile read = load_safetensors(path, Checksums::required);
    EXPECT_EQ(read.metadata, written.metadata);
    ASSERT_EQ(read.tensors.size(), written.tensors.size());
    for (const auto& [name, tensor] : written.tensors)
      EXPECT_TRUE(same_bytes(read.tensors.at(name), tensor)) << name;
    EXPECT_NE(::access((path + ".partial").c_str(), F_OK), 0);
    save_safetensors(path, {});
    EXPECT_TRUE(load_safetensors(path, Checksums::required).tensors.empty());
  });
}

TEST(Safetensors, TensorsOfAnyLayoutInMemoryAreStoredDense) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup) {
    const std::string path = folder.path() + "/file";
    const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
    const at::Tensor complex = at::complex(base, base);
    save_safetensors(path, {.tensors = {{"transposed", base.t()},
                                        {"expanded", base[0].expand({3, 6})},
                                        {"conjugate", complex.conj()},
                                        {"parameter", base.clone().requires_grad_()}}});
    const auto read = load_safetensors(path).tensors;
    EXPECT_TRUE(at::equal(read.at("transposed"), base.t()));
    EXPECT_TRUE(at::equal(read.at("expanded"), base[0].expand({3, 6})));
    EXPECT_TRUE(at::equal(read.at("conjugate"), complex.conj().resolve_conj()));
    EXPECT_TRUE(at::equal(read.at("parameter"), base));
  });
}

TEST(Safetensors, WhatTheFormatCannotHoldIsRefused) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup) {
    const std::string path = folder.path() + "/file";
    const at::Tensor one = at::ones({2, 2});
    EXPECT_THROW(save_safetensors(path, {.tensors = {{"x", {}}}}), ConfigError);
    EXPECT_THROW(save_safetensors(path, {.tensors = {{"x", one.to_sparse()}}}),
                 ConfigError);
    EXPECT_THROW(save_safetensors(path, {.tensors = {{"x", one.to(at::kComplexDouble)}}}),
                 ConfigError);
    EXPECT_THROW(save_safetensors(path, {.tensors = {{"__metadata__", one}}}), ConfigError);
    EXPECT_THROW(save_safetensors(path, {.tensors = {{"\xff", one}}}), ConfigError);
    EXPECT_THROW(save_safetensors(path, {.metadata = {{"brigade.checksum", "1"}}}),
                 ConfigError);
    EXPECT_NE(::access(path.c_str(), F_OK), 0) << "a refused file must not appear";
  });
}

// ---- Python -----------------------------------------------------------------------------

constexpr const char* kPythonChecks = R"(
import sys, torch
from safetensors import safe_open
from safetensors.torch import save_file
names = dict(Bool="bool", Byte="uint8", Char="int8", Short="int16", UInt16="uint16",
             Int="int32", UInt32="uint32", Long="int64", UInt64="uint64", Half="float16",
             BFloat16="bfloat16", Float="float32", Double="float64",
             ComplexFloat="complex64", Float8_e4m3fn="float8_e4m3fn",
             Float8_e5m2="float8_e5m2", Float8_e4m3fnuz="float8_e4m3fnuz",
             Float8_e5m2fnuz="float8_e5m2fnuz", Float8_e8m0fnu="float8_e8m0fnu")
tensors = {}
with safe_open(sys.argv[1], "pt") as file:
    meta = file.metadata()
    assert meta["key"] == 'value "quoted" \u00fc\n', meta
    assert meta[""] == "empty name"
    assert set(names) <= set(file.keys()), file.keys()
    for name in file.keys():
        tensors[name] = file.get_tensor(name)
for cpp, python in names.items():
    tensor = tensors[cpp]
    assert tensor.dtype == getattr(torch, python), (cpp, tensor.dtype)
    assert tuple(tensor.shape) == (3, 5)
    data = tensor.contiguous().view(torch.uint8).flatten()
    assert data.tolist() == [i % 2 for i in range(len(data))], cpp
assert tensors["scalar"].shape == () and tensors["none"].shape == (0, 4)
save_file({name: tensor for name, tensor in tensors.items()}, sys.argv[2],
          metadata={"key": meta["key"], "from": "python"})
)";

TEST(Safetensors, PythonReadsOursAndWeReadPythons) {
  ASSERT_FALSE(python_with_torch().empty());
  TemporaryFolder folder;
  const std::string ours = folder.path() + "/ours.safetensors";
  const std::string theirs = folder.path() + "/theirs.safetensors";
  run_ranks(1, [&](ProcessGroup) { save_safetensors(ours, every_dtype()); });
  const auto result = run_command({python_with_torch(), "-c", kPythonChecks, ours, theirs});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  run_ranks(1, [&](ProcessGroup) {
    const SafetensorsFile expected = every_dtype();
    const SafetensorsFile read = load_safetensors(theirs);
    EXPECT_EQ(read.metadata.at("from"), "python");
    ASSERT_EQ(read.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : expected.tensors)
      EXPECT_TRUE(same_bytes(read.tensors.at(name), tensor)) << name;
    EXPECT_NE(refusal(theirs, Checksums::required).find("foreign"), std::string::npos);
  });
}

// ---- not whole --------------------------------------------------------------------------

TEST(Safetensors, AnyByteThatChangedIsNoticed) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup) {
    const std::string path = folder.path() + "/file";
    for (const SafetensorsFile& content : {small_file(), SafetensorsFile{}}) {
      save_safetensors(path, content);
      const std::string good = read_bytes(path);
      for (size_t place = 0; place < good.size(); ++place) {
        // Flips each bit, and makes blanks, digits, quotes and brackets.
        for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128, 0xff, 0x29, 0x2a, 0x2d, 0x12}) {
          std::string bad = good;
          bad[place] = static_cast<char>(bad[place] ^ flip);
          write_bytes(path, bad);
          const std::string why = refusal(path);
          ASSERT_NE(why, "it was accepted") << "byte " << place << " ^ " << flip;
          ASSERT_TRUE(why.starts_with(path + ": ")) << why;
          // JSON's writer throws for text that is not UTF-8.
          ASSERT_NO_THROW(nlohmann::json(why).dump()) << "byte " << place << " ^ " << flip;
        }
      }
      write_bytes(path, good);
      EXPECT_EQ(load_safetensors(path).tensors.size(), content.tensors.size());
    }
  });
}

TEST(Safetensors, AFileCutAtAnyLengthOrWithATailIsRefused) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup) {
    const std::string path = folder.path() + "/file";
    save_safetensors(path, small_file());
    const std::string good = read_bytes(path);
    for (size_t length = 0; length < good.size(); ++length) {
      write_bytes(path, good.substr(0, length));
      expect_refused(path, "truncated");
    }
    write_bytes(path, good + '\0');
    expect_refused(path, "1 bytes follow after its last tensor");
  });
}

TEST(Safetensors, ForeignAndCraftedFilesAreRefusedWithTheReason) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup) {
    const std::string path = folder.path() + "/file";
    expect_refused(path, "No such file");
    expect_refused(folder.path(), "not a regular file");
    write_bytes(path, "PK\x03\x04 a zip file, as torch::save writes them");
    expect_refused(path, "not a safetensors file");
    craft(path, "[]      ", "");
    expect_refused(path, "does not begin with '{'");
    craft(path, R"({"a":})", "");
    expect_refused(path, "not valid JSON");
    craft(path, std::string(50, '{'), "");
    expect_refused(path, "corrupt");
    craft(path, "{\"a\":" + std::string(100'000, '['), "");
    expect_refused(path, "nested too deep");
    const auto with = [&](const std::string& entries, const std::string& data) {
      craft(path, "{" + entries + "}", data);
    };
    const std::string good = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
    with(good, "xy");
    EXPECT_EQ(load_safetensors(path).tensors.size(), 1u);
    with(good + "," + good, "xy");
    expect_refused(path, "'a' twice");
    with(good + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]})", "xyz");
    expect_refused(path, "'b' begins at byte 1");
    with(good + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]})", "xyzz");
    expect_refused(path, "'b' begins at byte 3");
    with(R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,2]})", "xy");
    expect_refused(path, "needs 3");
    with(R"("a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]})", "xy");
    expect_refused(path, "needs 2");
    with(R"("a":{"dtype":"U9","shape":[2],"data_offsets":[0,2]})", "xy");
    expect_refused(path, "unknown dtype");
    with(R"("a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]})", "xy");
    expect_refused(path, "no possible size");
    with(R"("a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]})", "xy");
    expect_refused(path, "no possible size");
    with(R"("a":{"dtype":"F64","shape":[4294967296,4294967296,0],"data_offsets":[0,0]})",
         "");
    expect_refused(path, "more elements than there can be");
    // Without elements, but with strides.
    for (const char* shape : {"0,4294967296,4294967296", "4611686018427387904,0,4",
                              "4611686018427387904,0", "4294967296,0,4294967296"}) {
      with(std::string(R"("a":{"dtype":"F64","shape":[)") + shape +
               R"(],"data_offsets":[0,0]})",
           "");
      expect_refused(path, "tensor 'a''s shape");
      expect_refused(path, "more elements than there can be");
    }
    craft(path, "{" + good + "}" + std::string("\0 anything", 10), "xy");
    expect_refused(path, "its header has a zero byte at byte 61 of the file");
    craft(path, "{\"a\":\"\xff\"}", "");
    expect_refused(path, "not valid JSON at byte 14 of the file");
    expect_refused(path, "\\xff");
    with(R"("a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,2]})", "xy");
    expect_refused(path, "no possible size");
    with(R"("__metadata__":{"a":1})", "");
    expect_refused(path, "no string");
    with(R"("__metadata__":[])", "");
    expect_refused(path, "no JSON object");
  });
}

TEST(Safetensors, AHugeHeaderLengthIsRefusedWithoutAllocatingIt) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup) {
    const std::string path = folder.path() + "/file";
    write_bytes(path, std::string(7, '\xff') + "\x7f{}");
    expect_refused(path, "not a safetensors file");
    write_bytes(path, std::string("\x00\xe1\xf5\x05\0\0\0\0{}", 10));  // 99'999'999 + 1
    expect_refused(path, "truncated");
  });
}

// ---- kills and full disks ---------------------------------------------------------------

// Calls `body` in a child. Returns its exit code, or minus the signal that ended it.
int in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 0;
    try {
      body();
    } catch (const CheckpointError&) {
      code = 3;
    } catch (...) {
      code = 4;
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

SafetensorsFile big_file(float value) {
  return {.tensors = {{"w", at::full({1 << 17}, value)}}};
}
float value_in(const std::string& path) {
  const at::Tensor w = load_safetensors(path, Checksums::required).tensors.at("w");
  EXPECT_TRUE(w.eq(w[0]).all().item<bool>());
  return w[0].item<float>();
}

TEST(Safetensors, ALimitedFileSizeLeavesTheLastGoodFileWhole) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  run_ranks(1, [&](ProcessGroup) {
    at::set_num_threads(1);
    save_safetensors(path, big_file(1));
    for (const rlim_t limit : {0, 1, 8, 100, 4096, 500'000}) {
      const int code = in_child([&] {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit most{limit, limit};
        setrlimit(RLIMIT_FSIZE, &most);
        save_safetensors(path, big_file(2));
      });
      EXPECT_EQ(code, 3) << limit;
      EXPECT_EQ(value_in(path), 1);
      EXPECT_NE(::access((path + ".partial").c_str(), F_OK), 0) << "left behind";
    }
  });
}

TEST(Safetensors, AFullDiskLeavesTheLastGoodFileWhole) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  run_ranks(1, [&](ProcessGroup) {
    at::set_num_threads(1);
    // Only this child sees this file system of 768 KiB: one file of 512 KiB fits, not two.
    const int code = in_child([&] {
      if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, "") != 0 ||
          mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=768k") != 0) {
        _exit(5);
      }
      save_safetensors(path, big_file(1));
      bool refused = false;
      try {
        save_safetensors(path, big_file(2));
      } catch (const CheckpointError& error) {
        refused = std::string(error.what()).find("No space left") != std::string::npos;
      }
      _exit(refused && value_in(path) == 1 &&
                    ::access((path + ".partial").c_str(), F_OK) != 0
                ? 0
                : 6);
    });
    // Without the right to mount, the test above stands in, with its size limit.
    EXPECT_TRUE(code == 0 || code == 5) << code;
  });
}

TEST(Safetensors, AKillAtAnyMomentLeavesTheLastGoodFile) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  run_ranks(1, [&](ProcessGroup) {
    at::set_num_threads(1);
    save_safetensors(path, big_file(0));
    float last = 0;
    int killed_early = 0;
    for (int attempt = 1; attempt <= 150; ++attempt) {
      int begun[2];
      ASSERT_EQ(pipe(begun), 0);
      const pid_t child = fork();
      if (child == 0) {
        close(begun[1]);  // the parent reads the end of the pipe
        try {
          for (int i = 0; i < 1000; ++i)
            save_safetensors(path, big_file(attempt + i * 1e-3f));
        } catch (...) {
        }
        _exit(0);
      }
      close(begun[1]);
      char none;
      EXPECT_EQ(read(begun[0], &none, 1), 0);
      close(begun[0]);
      // A slow machine begins to write later: kills come later until one hits a write.
      const int patience = killed_early > 0 ? 1 : 1 + attempt / 15;
      usleep(static_cast<useconds_t>(attempt * 53 % 5000 * patience));
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      killed_early += ::access((path + ".partial").c_str(), F_OK) == 0;
      const float now = value_in(path);
      EXPECT_TRUE(now == last || std::floor(now) == attempt) << now << " after " << last;
      last = now;
    }
    EXPECT_GT(killed_early, 0) << "no kill fell into a write";
    save_safetensors(path, big_file(-1));
    EXPECT_EQ(value_in(path), -1);
    EXPECT_NE(::access((path + ".partial").c_str(), F_OK), 0);
  });
}

}  // namespace
}  // namespace brigade::testing
