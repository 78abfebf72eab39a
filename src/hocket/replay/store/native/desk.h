// Answers messages for the tables of a server, whichever way they came.
//
// Requests are bytes that somebody else wrote, perhaps into memory that they may still write to:
// what is checked is copied first.

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

// A table with what the server knows of it.
struct Served {
  std::string name, schema;
  std::shared_ptr<Shared> shared;
  std::string snapshot;  // the file that it is saved to; empty for none
  std::string tally;     // the file that counts its inserts, whatever happens; empty for none
};

// Where a reply is written, header and all.
class Outbox {
 public:
  // Room for the reply, null if it is too large here. A second call replaces the first.
  virtual uint8_t* room(uint64_t bytes) = 0;

 protected:
  ~Outbox() = default;
};

// A snapshot under way, in a thread of its own.
struct Saving {
  std::thread thread;
  std::atomic<bool> done{false};
  std::string problem;
  ~Saving() {
    if (thread.joinable()) thread.join();
  }
};

// What is known of a request from its first try to its answer.
struct Pending {
  bool begun = false;
  Clock::time_point deadline;
  uint64_t ticket = 0;  // who waited longer has a lower one
  Largest before;       // requests, which count again if this one is given up
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

  // Answer, unless it has to wait: then there is no reply yet, and it is to be asked again.
  Outcome answer(const Header& request, const uint8_t* body, Pending& pending, Outbox& out);

  // Answer with a text, which is cut short where there is no room for it.
  void say(const Header& request, const std::string& text, Outbox& out, Code code = Code::kOk);

  // The same, counted: what is wrong.
  void refuse(const Header& request, Code code, const std::string& why, Outbox& out);

  // What waits will never be asked again: it took too long, or who asked is gone.
  void forget(const Header& request, const Pending& pending);

  // Bytes that a message may have at most, and what to say of one that has more.
  uint64_t most_bytes() const { return most_bytes_; }
  std::string too_long(const Header& request) const;

  // Whether something changed since this was asked last, so that who waits should try again.
  bool take_changed() { return std::exchange(changed_, false); }
  bool has_changed() const { return changed_; }

  Traffic traffic;

 private:
  struct Place : Served {
    explicit Place(Served served);
    uint64_t hash, bytes_in = 0, frame_bytes = 0;
    double bytes_out = 0.0;  // of a row in a sample: a count of them could overflow
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
  std::vector<std::shared_ptr<Saving>> savings_;  // whoever asked for them may be gone
  std::vector<Key> keys_;
  std::vector<float> numbers_, chances_;
  std::vector<std::vector<uint64_t>> references_;  // to frames, which are checked
};

}  // namespace hocket
