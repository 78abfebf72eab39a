#include "desk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace hocket {
namespace {

Answer wrong_length(const Header& request, uint64_t wanted) {
  return {Status::kBad, "a request for " + std::to_string(request.rows) + " rows has " +
                            std::to_string(wanted) + " bytes, found " +
                            std::to_string(request.length)};
}

Answer too_large(const Header& request, uint64_t most) {
  return {Status::kBad, "a request for " + std::to_string(request.rows) +
                            " rows is too large: a message has at most " + std::to_string(most) +
                            " bytes"};
}

constexpr char kNoRoom[] = "the reply is too large for this connection";

}  // namespace

Desk::Place::Place(Served served) : Served(std::move(served)), hash(schema_hash(schema)) {
  const Table& table = *shared->table;
  for (const Column& column : table.options().columns) {
    bytes_in += column.frames ? column.frames * sizeof(uint64_t) : column.bytes;
    bytes_out += static_cast<double>(column.bytes) * std::max(column.frames, uint32_t{1});
    if (column.frames) frame_bytes = column.bytes;
  }
  if (tally.empty()) return;
  const std::lock_guard<std::mutex> alone(shared->mutex);
  shared->tally = std::make_shared<Tally>(tally, snapshot);
  shared->tally->saved(shared->inserts());  // all of it was restored, or is new
  shared->count();
}

Desk::Desk(std::vector<Served> tables, uint64_t most_bytes) : most_bytes_(most_bytes) {
  for (Served& served : tables) places_.emplace_back(std::move(served));
}

Outcome Desk::answer(const Header& request, const uint8_t* body, Pending& pending, Outbox& out) {
  const auto bad = [&](const std::string& why) {
    refuse(request, Code::kBad, why, out);
    return Outcome::kReplied;
  };
  if (!pending.begun) ++traffic.requests;
  if (request.version != kWireVersion) {
    return bad("this server speaks version " + std::to_string(kWireVersion) + ", found " +
               std::to_string(request.version));
  }
  if (request.op < Op::kHello || request.op > Op::kBye || request.op == Op::kMap) {
    return bad("there is no operation " + std::to_string(static_cast<int>(request.op)) + " here");
  }
  if (request.op == Op::kBye) {
    say(request, "", out);
    return Outcome::kEnd;
  }
  if (request.op == Op::kHello) {
    say(request, tables(), out);
    return Outcome::kReplied;
  }
  if (request.table >= places_.size()) {
    return bad("there is no table " + std::to_string(request.table));
  }
  Place& place = places_[request.table];
  if (request.schema != place.hash) {
    return bad("table `" + place.name + "` has the columns " + place.schema +
               ", and the client has others");
  }
  const bool waited = pending.begun;
  Answer answer;
  try {
    answer = carry_out(request, body, place, pending, out);
  } catch (const std::exception& error) {
    answer = {Status::kBad, error.what()};
  }
  if (answer.status != Status::kWait) traffic.waiting -= waited;
  if (answer.status == Status::kOk) return Outcome::kReplied;
  if (answer.status == Status::kBad) return bad(answer.why);
  if (!pending.begun) {
    pending.begun = true;
    pending.ticket = next_ticket_++;
    ++traffic.waiting;
    pending.deadline = request.timeout_ms == kForever || request.op == Op::kSave
                           ? Clock::time_point::max()
                           : Clock::now() + std::chrono::milliseconds(request.timeout_ms);
  }
  if (Clock::now() < pending.deadline) return Outcome::kWait;
  forget(request, pending);
  ++traffic.timeouts;
  say(request, answer.why, out, Code::kTimeout);
  return Outcome::kReplied;
}

void Desk::forget(const Header& request, const Pending& pending) {
  --traffic.waiting;
  if (request.op != Op::kInsert && request.op != Op::kSample) return;
  Shared& shared = *places_[request.table].shared;
  std::lock_guard<std::mutex> alone(shared.mutex);
  Largest largest = shared.table->largest();
  const bool is_insert = request.op == Op::kInsert;
  uint64_t& rows = is_insert ? largest.insert : largest.sample;
  if (rows == request.rows) rows = is_insert ? pending.before.insert : pending.before.sample;
  shared.table->set_largest(largest);
}

void Desk::refuse(const Header& request, Code code, const std::string& why, Outbox& out) {
  ++traffic.refused;
  say(request, why, out, code);
}

Answer Desk::carry_out(const Header& request, const uint8_t* body, Place& place, Pending& pending,
                       Outbox& out) {
  if (request.op == Op::kSave) return save(request, place, pending, out);
  std::lock_guard<std::mutex> alone(place.shared->mutex);
  if (place.shared->closed) return {Status::kBad, "table `" + place.name + "` was closed"};
  Table& table = *place.shared->table;
  if (!pending.begun) pending.before = table.largest();
  const auto changed = [&](Answer answer) {
    if (answer.status == Status::kOk) {
      changed_ = true;
      place.shared->changed.notify_all();
    }
    return answer;
  };
  switch (request.op) {
    case Op::kInsert: return changed(insert(request, body, place, out));
    case Op::kSample: return changed(sample(request, body, place, out));
    case Op::kUpdate: return update(request, body, place, out);
    case Op::kFrames: return changed(frames(request, body, place, out));
    case Op::kReset:
      place.shared->clear();
      say(request, "", out);
      return changed({});
    default: say(request, info(place), out); return {};
  }
}

Answer Desk::insert(const Header& request, const uint8_t* body, Place& place, Outbox& out) {
  Table& table = *place.shared->table;
  const uint64_t rows = request.rows;
  const uint64_t numbers = request.flags & kHasNumbers ? rows * sizeof(float) : 0;
  if (is_too_large(rows, static_cast<double>(place.bytes_in))) return too_large(request, most_bytes_);
  const uint64_t wanted = numbers + rows * place.bytes_in;
  if (request.length != wanted) return wrong_length(request, wanted);
  const auto& about = table.options().columns;
  std::vector<const void*> columns(about.size());
  references_.resize(about.size());
  const uint8_t* at = body + numbers;
  for (size_t c = 0; c < about.size(); ++c) {
    columns[c] = at;
    if (about[c].frames) {
      references_[c].resize(rows * about[c].frames);
      if (rows) std::memcpy(references_[c].data(), at, rows * about[c].frames * sizeof(uint64_t));
      columns[c] = references_[c].data();
      at += rows * about[c].frames * sizeof(uint64_t);
    } else {
      at += rows * about[c].bytes;
    }
  }
  numbers_.resize(rows);
  if (numbers) std::memcpy(numbers_.data(), body, numbers);
  keys_.resize(rows);
  // Room for the reply comes first, because an insert that cannot be answered must not be done.
  if (!out.room(sizeof(Header) + rows * sizeof(Key))) return {Status::kBad, kNoRoom};
  Answer answer =
      table.insert(rows, columns.data(), numbers ? numbers_.data() : nullptr, keys_.data());
  if (answer.status != Status::kOk) return answer;
  place.shared->count();
  uint8_t* to = reply(request, rows * sizeof(Key), out, Code::kOk, 0, &table);
  if (rows) std::memcpy(to, keys_.data(), rows * sizeof(Key));
  return {};
}

Answer Desk::sample(const Header& request, const uint8_t* body, Place& place, Outbox& out) {
  Table& table = *place.shared->table;
  const uint64_t rows = request.rows;
  const uint64_t numbers = request.flags & kHasNumbers ? rows * sizeof(float) : 0;
  if (request.length != numbers) return wrong_length(request, numbers);
  if (is_too_large(rows, place.bytes_out)) return too_large(request, most_bytes_);
  const auto& about = table.options().columns;
  const uint64_t keys = rows * sizeof(Key), chances = rows * sizeof(float);
  uint64_t length = aligned(keys) + aligned(chances);
  std::vector<uint64_t> offsets;
  for (const Column& column : about) {
    offsets.push_back(length);
    length += aligned(rows * column.bytes * std::max(column.frames, uint32_t{1}));
  }
  if (length > most_bytes_) return too_large(request, most_bytes_);
  uint8_t* to = out.room(sizeof(Header) + length);
  if (!to) return {Status::kBad, kNoRoom};
  to += sizeof(Header);
  numbers_.resize(rows);
  if (numbers) std::memcpy(numbers_.data(), body, numbers);
  keys_.resize(rows);
  chances_.resize(rows);
  std::vector<void*> columns;
  for (const uint64_t offset : offsets) columns.push_back(to + offset);
  Drawn drawn{keys_.data(), chances_.data(), columns.data()};
  Answer answer = table.sample(rows, numbers ? numbers_.data() : nullptr, drawn);
  if (answer.status != Status::kOk) return answer;
  std::memcpy(to, keys_.data(), keys);
  std::memcpy(to + aligned(keys), chances_.data(), chances);
  reply(request, length, out, Code::kOk, drawn.evenly ? kEvenly : 0, &table);
  return {};
}

Answer Desk::update(const Header& request, const uint8_t* body, Place& place, Outbox& out) {
  const uint64_t rows = request.rows, keys = rows * sizeof(Key);
  if (request.length != keys + rows * sizeof(float)) {
    return wrong_length(request, keys + rows * sizeof(float));
  }
  keys_.resize(rows);
  numbers_.resize(rows);
  if (rows) {
    std::memcpy(keys_.data(), body, keys);
    std::memcpy(numbers_.data(), body + keys, rows * sizeof(float));
  }
  uint64_t stale = 0;
  Table& table = *place.shared->table;
  Answer answer = table.update(rows, keys_.data(), numbers_.data(), stale);
  if (answer.status != Status::kOk) return answer;
  std::memcpy(reply(request, sizeof(stale), out, Code::kOk, 0, &table), &stale, sizeof(stale));
  return {};
}

Answer Desk::frames(const Header& request, const uint8_t* body, Place& place, Outbox& out) {
  if (is_too_large(request.rows, static_cast<double>(place.frame_bytes))) {
    return too_large(request, most_bytes_);
  }
  if (request.length != request.rows * place.frame_bytes) {
    return wrong_length(request, request.rows * place.frame_bytes);
  }
  uint64_t first = 0;
  Table& table = *place.shared->table;
  Answer answer = table.add_frames(request.rows, body, first);
  if (answer.status != Status::kOk) return answer;
  std::memcpy(reply(request, sizeof(first), out, Code::kOk, 0, &table), &first, sizeof(first));
  return {};
}

Answer Desk::save(const Header& request, Place& place, Pending& pending, Outbox& out) {
  if (place.snapshot.empty()) {
    return {Status::kBad, "this server was given no folder for snapshots"};
  }
  if (!pending.saving) {
    pending.saving = std::make_shared<Saving>();
    const auto is_done = [](const auto& saving) { return saving->done.load(); };
    savings_.erase(std::remove_if(savings_.begin(), savings_.end(), is_done), savings_.end());
    savings_.push_back(pending.saving);
    pending.saving->thread = std::thread([saving = pending.saving.get(), shared = place.shared,
                                          path = place.snapshot, schema = place.schema] {
      try {
        shared->save(path, schema);
      } catch (const std::exception& error) {
        saving->problem = error.what();
      }
      saving->done = true;
    });
  }
  if (!pending.saving->done) return {Status::kWait, "it is being saved"};
  if (!pending.saving->problem.empty()) return {Status::kBad, pending.saving->problem};
  say(request, "", out);
  return {};
}

// Writes the header of a reply, and returns the room for its body.
uint8_t* Desk::reply(const Header& request, uint64_t length, Outbox& out, Code code,
                     uint32_t flags, const Table* table) {
  uint8_t* to = out.room(sizeof(Header) + length);
  if (!to) return nullptr;
  Header header = request;
  header.magic = kWireMagic;
  header.version = kWireVersion;
  header.code = code;
  header.flags = flags;
  header.length = length;
  header.size = table ? table->size() : 0;
  header.total = table ? table->total() : 0.0f;
  std::memcpy(to, &header, sizeof(header));
  return to + sizeof(header);
}

void Desk::say(const Header& request, const std::string& text, Outbox& out, Code code) {
  if (uint8_t* to = reply(request, text.size(), out, code)) {
    std::memcpy(to, text.data(), text.size());
  } else if (code == Code::kOk) {
    say(request, kNoRoom, out, Code::kBad);
  } else if (text.size() > kLeastReply - sizeof(Header)) {
    say(request, text.substr(0, kLeastReply - sizeof(Header)), out, code);
  }
}

std::string Desk::too_long(const Header& request) const {
  return "a request of " + std::to_string(request.length) + " bytes is too large: at most " +
         std::to_string(most_bytes_);
}

bool Desk::is_too_large(uint64_t rows, double bytes) const {
  return static_cast<double>(rows) * bytes > static_cast<double>(most_bytes_);
}

std::string Desk::tables() const {
  std::ostringstream text;
  for (const Place& place : places_) {
    text << place.name << ' ' << place.shared->table->options().capacity << ' ' << place.schema
         << '\n';
  }
  return text.str();
}

std::string Desk::info(Place& place) const {
  const Counts c = place.shared->table->counts();
  const Limits& limits = place.shared->table->options().limits;
  std::ostringstream text;
  text.precision(17);
  text << "size " << c.size << "\ncapacity " << c.capacity << "\ninserts " << c.inserts
       << "\nsamples " << c.samples << "\nupdates " << c.updates << "\nstale_keys " << c.stale_keys
       << "\nremovals " << c.removals << "\nframes " << c.frames << "\nbytes " << c.bytes
       << "\nhighest " << c.highest << "\ntotal " << c.total << "\nmin_size " << limits.min_size
       << "\nsamples_per_insert " << limits.samples_per_insert << "\nleast " << limits.least
       << "\nmost " << limits.most << "\nclients " << traffic.clients << "\nrequests "
       << traffic.requests << "\nrefused " << traffic.refused << "\ntimeouts " << traffic.timeouts
       << "\nwaiting " << traffic.waiting << "\ndropped " << traffic.dropped << '\n';
  return text.str();
}

}  // namespace hocket
