// A page of shared memory for each worker: the worker writes its status there, and whoever
// watches the job reads it. Nobody waits for anybody: writing is a few stores, and a job
// that hangs can be read as well as one that trains.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "group/live/rank_status.h"

namespace brigade::group {

// The variable by which a launcher names the file to a worker.
inline constexpr const char* kStatusFile = "BRIGADE_STATUS_FILE";

// The launcher's part: a file with an empty page. False: it cannot be made. All of it has
// memory then, so that no writer meets a full file system.
bool make_rank_page(const std::string& path);

// The writer's part, in the worker. Thread-safe.
class RankPage {
 public:
  // That of this process. Null: no launcher watches, or the page belongs to another
  // process, such as the one that started this one.
  static RankPage* of_this_process();

  // Throws Error if there is no such page, or if it is another process's.
  explicit RankPage(const std::string& path);
  ~RankPage();
  RankPage(const RankPage&) = delete;
  RankPage& operator=(const RankPage&) = delete;

  // Changes the status and shows it.
  template <class Change>
  void update(Change change) {
    std::lock_guard lock(mutex_);
    change(status_);
    show();
  }
  // Changes the status; the next update() shows it.
  template <class Change>
  void note(Change change) {
    std::lock_guard lock(mutex_);
    change(status_);
  }

  // Of several models in one process one tells its steps: the first that asks, until it
  // releases the page.
  bool claim(const void* model);
  void release(const void* model);

 private:
  struct Layout;
  friend std::optional<struct RankReading> read_rank_page(const std::string& path);
  friend bool make_rank_page(const std::string& path);
  void show();

  std::mutex mutex_;
  RankStatus status_;
  const void* model_ = nullptr;
  Layout* layout_ = nullptr;
};

struct RankReading {
  std::int64_t pid = 0;  // 0: nobody has written yet
  RankStatus status;
};
// The reader's part, in any process. None: there is no such page. What a writer that was
// killed left half written is read as it is.
std::optional<RankReading> read_rank_page(const std::string& path);

// The same status where everything is within its bounds: for bytes that any process, or
// another host, has written. Spaces stand for control characters in its texts.
RankStatus checked(RankStatus status);
std::string printable(std::string text);

// CLOCK_MONOTONIC, which all processes of a host share.
std::int64_t monotonic_ns();

}  // namespace brigade::group
