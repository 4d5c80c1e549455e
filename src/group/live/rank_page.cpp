#include "group/live/rank_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "brigade/error.h"

namespace brigade::group {
namespace {

constexpr std::uint64_t kMagic = 0x31306576696c6762;  // its last digits are the version
constexpr size_t kWords = sizeof(RankStatus) / sizeof(std::uint64_t);
// A writer is done within a microsecond unless it was killed or has lost its core.
constexpr int kTries = 1000;

// What would move a terminal's cursor.
bool is_control(char c) { return (c > 0 && c < ' ') || c == 127; }

}  // namespace

// A sequence lock: `sequence` is odd while the words are being written.
struct RankPage::Layout {
  std::uint64_t magic;
  std::atomic<std::int64_t> pid;
  std::atomic<std::uint64_t> sequence;
  std::array<std::atomic<std::uint64_t>, kWords> words;

  static Layout* map(int fd, int access) {
    struct stat info {};
    if (fstat(fd, &info) != 0 || info.st_size != sizeof(Layout)) return nullptr;
    void* memory = mmap(nullptr, sizeof(Layout), access, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto* layout = static_cast<Layout*>(memory);
    if (layout->magic == kMagic) return layout;
    munmap(memory, sizeof(Layout));
    return nullptr;
  }
};

bool make_rank_page(const std::string& path) {
  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool made = posix_fallocate(fd, 0, sizeof(RankPage::Layout)) == 0 &&
                    pwrite(fd, &kMagic, sizeof kMagic, 0) == sizeof kMagic;
  close(fd);
  if (!made) unlink(path.c_str());
  return made;
}

RankPage* RankPage::of_this_process() {
  static const std::unique_ptr<RankPage> page = []() -> std::unique_ptr<RankPage> {
    const char* path = std::getenv(kStatusFile);
    if (!path || !*path) return nullptr;
    try {
      return std::make_unique<RankPage>(path);
    } catch (const Error&) {
      return nullptr;  // training matters more than being watched
    }
  }();
  return page.get();
}

RankPage::RankPage(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd >= 0) layout_ = Layout::map(fd, PROT_READ | PROT_WRITE);
  if (fd >= 0) close(fd);
  if (!layout_) throw Error("'" + path + "' is no page of a rank");
  std::int64_t nobody = 0;
  if (layout_->pid.compare_exchange_strong(nobody, getpid())) return;
  munmap(layout_, sizeof(Layout));
  throw Error("'" + path + "' belongs to process " + std::to_string(nobody));
}

RankPage::~RankPage() { munmap(layout_, sizeof(Layout)); }

void RankPage::show() {
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &status_, sizeof status_);
  const auto sequence = layout_->sequence.load(std::memory_order_relaxed);
  layout_->sequence.store(sequence + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < kWords; ++i)
    layout_->words[i].store(words[i], std::memory_order_relaxed);
  layout_->sequence.store(sequence + 2, std::memory_order_release);
}

bool RankPage::claim(const void* model) {
  std::lock_guard lock(mutex_);
  if (!model_) model_ = model;
  return model_ == model;
}

void RankPage::release(const void* model) {
  std::lock_guard lock(mutex_);
  if (model_ == model) model_ = nullptr;
}

std::optional<RankReading> read_rank_page(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  RankPage::Layout* layout = RankPage::Layout::map(fd, PROT_READ);
  close(fd);
  if (!layout) return std::nullopt;
  RankReading reading{.pid = layout->pid.load()};
  std::array<std::uint64_t, kWords> words;
  for (int i = 0; i < kTries; ++i) {
    const auto before = layout->sequence.load(std::memory_order_acquire);
    for (size_t word = 0; word < kWords; ++word)
      words[word] = layout->words[word].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && layout->sequence.load(std::memory_order_relaxed) == before)
      break;
  }
  munmap(layout, sizeof(RankPage::Layout));
  std::memcpy(static_cast<void*>(&reading.status), words.data(), sizeof reading.status);
  reading.status = checked(reading.status);
  return reading;
}

RankStatus checked(RankStatus status) {
  status.buckets = std::clamp(status.buckets, 0, RankStatus::kBuckets);
  status.steps_over = std::max<std::int64_t>(0, status.steps_over);
  status.hook[sizeof status.hook - 1] = 0;
  std::ranges::replace_if(status.hook, is_control, ' ');
  return status;
}

std::string printable(std::string text) {
  std::ranges::replace_if(text, is_control, ' ');
  return text;
}

std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

}  // namespace brigade::group
