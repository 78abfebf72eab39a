// The desk of a server: it answers messages for its tables, from all carriers.
//
// A request may lie in memory that its client can still write to. So values are copied before they
// are checked, and only the copies are used.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shared.h"
#include "wire.h"

namespace hocket {

using Clock = std::chrono::steady_clock;

// A table, with what the server knows about it.
struct Served {
  std::string name, schema;
  std::shared_ptr<Shared> shared;
  std::string snapshot;  // the file that it is saved to; empty for none
  std::string tally;     // the file that counts its inserts, even in a crash; empty for none
};

// A place for a reply with its header.
class Outbox {
 public:
  // Room for the reply; null if it is too large. A second call replaces the first.
  virtual uint8_t* room(uint64_t bytes) = 0;

 protected:
  ~Outbox() = default;
};

// A snapshot that is being written, in its own thread.
struct Saving {
  std::thread thread;
  std::atomic<bool> done{false};
  std::string problem;
  ~Saving() {
    if (thread.joinable()) thread.join();
  }
};

// What is remembered of a request between its first try and its answer.
struct Pending {
  bool begun = false;
  Clock::time_point deadline;
  uint64_t ticket = 0;  // lower for a request that has waited longer
  Largest before;       // the largest requests before it, restored if it is given up
  std::shared_ptr<Saving> saving;
};

enum class Outcome { kReplied, kWait, kEnd };

struct Traffic {
  uint64_t requests = 0, refused = 0, timeouts = 0, clients = 0, waiting = 0, dropped = 0;
};

class Desk {
 public:
  Desk(std::vector<Served> tables, uint64_t most_bytes);
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  // Answers a request. If it has to wait, there is no reply yet, and the caller must try it again.
  Outcome answer(const Header& request, const uint8_t* body, Pending& pending, Outbox& out);

  // Answers with a text, which is cut if there is too little room.
  void say(const Header& request, const std::string& text, Outbox& out, Code code = Code::kOk);

  // Answers with an error, and counts it.
  void refuse(const Header& request, Code code, const std::string& why, Outbox& out);

  // Forgets a request that waits, because it took too long or its client is gone.
  void forget(const Header& request, const Pending& pending);

  // The most bytes that a message may have, and the error for a longer one.
  uint64_t most_bytes() const { return most_bytes_; }
  std::string too_long(const Header& request) const;

  // True if a table has changed since the last call, so that waiting requests should be retried.
  bool take_changed() { return std::exchange(changed_, false); }
  bool has_changed() const { return changed_; }

  Traffic traffic;

 private:
  struct Place : Served {
    explicit Place(Served served);
    uint64_t hash, bytes_in = 0, frame_bytes = 0;
    double bytes_out = 0.0;  // of a row in a sample; a double, since multiples could overflow
  };

  Answer carry_out(const Header& request, const uint8_t* body, Place& place, Pending& pending,
                   Outbox& out);
  Answer insert(const Header& request, const uint8_t* body, Place& place, Outbox& out);
  Answer sample(const Header& request, const uint8_t* body, Place& place, Outbox& out);
  Answer update(const Header& request, const uint8_t* body, Place& place, Outbox& out);
  Answer frames(const Header& request, const uint8_t* body, Place& place, Outbox& out);
  Answer save(const Header& request, Place& place, Pending& pending, Outbox& out);
  uint8_t* reply(const Header& request, uint64_t length, Outbox& out, Code code = Code::kOk,
                 uint32_t flags = 0, const Table* table = nullptr);
  bool is_too_large(uint64_t rows, double bytes) const;
  std::string tables() const;
  std::string info(Place& place) const;

  std::vector<Place> places_;
  uint64_t most_bytes_;
  bool changed_ = false;
  uint64_t next_ticket_ = 0;
  std::vector<std::shared_ptr<Saving>> savings_;  // kept here, since their clients may be gone
  std::vector<Key> keys_;
  std::vector<float> numbers_, chances_;
  std::vector<std::vector<uint64_t>> references_;  // copies of frame numbers, to be checked
};

}  // namespace hocket
