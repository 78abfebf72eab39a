// Frames, to which rows refer by number, so that overlapping rows can share them.

#include <algorithm>
#include <cstring>
#include <functional>

#include "snapshot.h"
#include "table.h"

namespace hocket {

Answer Table::add_frames(uint64_t frames, const void* data, uint64_t& first) {
  if (!options_.num_frames) return {Status::kBad, "this table has no columns of frames"};
  if (!frames || frames > options_.num_frames) {
    return {Status::kBad, "from 1 to " + std::to_string(options_.num_frames) +
                              " frames are added at once, found " + std::to_string(frames)};
  }
  first = frames_added_;
  for (uint64_t i = 0; i < frames; ++i) {
    const uint64_t at = (frames_added_ + i) % options_.num_frames;
    if (snapshot_) snapshot_->frames_.keep(at);
    std::memcpy(frames_.data() + at * frame_bytes_,
                static_cast<const uint8_t*>(data) + i * frame_bytes_, frame_bytes_);
  }
  frames_added_ += frames;
  forget_rows_of_lost_frames();
  return {};
}

uint64_t Table::oldest_frame(uint32_t slot) const {
  uint64_t oldest = UINT64_MAX;
  for (size_t c = 0; c < offsets_.size(); ++c) {
    for (uint32_t f = 0; f < options_.columns[c].frames; ++f) {
      uint64_t number;
      std::memcpy(&number, row(slot) + offsets_[c] + f * sizeof(number), sizeof(number));
      oldest = std::min(oldest, number);
    }
  }
  return oldest;
}

void Table::note_oldest_frame(uint32_t slot) {
  const auto is_gone = [&](const auto& entry) {
    return generations_[std::get<1>(entry)] != std::get<2>(entry);
  };
  auto& heap = oldest_frames_;
  if (heap.size() >= 2 * options_.capacity) {
    heap.erase(std::remove_if(heap.begin(), heap.end(), is_gone), heap.end());
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
  }
  heap.emplace_back(oldest_frame(slot), slot, generations_[slot]);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

void Table::forget_rows_of_lost_frames() {
  const uint64_t kept = frames_added_ - std::min(frames_added_, options_.num_frames);
  auto& heap = oldest_frames_;
  while (!heap.empty() && std::get<0>(heap.front()) < kept) {
    const auto [frame, slot, generation] = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    if (generations_[slot] == generation) remove(slot);
  }
  settle();
}

std::string Table::problem_with_frames(uint64_t rows, const void* const* columns) const {
  const uint64_t oldest = frames_added_ - std::min(frames_added_, options_.num_frames);
  for (size_t c = 0; c < options_.columns.size(); ++c) {
    const uint64_t many = rows * options_.columns[c].frames;
    const auto* numbers = static_cast<const uint8_t*>(columns[c]);
    for (uint64_t i = 0; i < many; ++i) {
      uint64_t number;
      std::memcpy(&number, numbers + i * sizeof(number), sizeof(number));
      if (number >= frames_added_ || number < oldest) {
        return "there is no frame " + std::to_string(number) + ", but those from " +
               std::to_string(oldest) + " to " + std::to_string(frames_added_) +
               " (not included), in row " + std::to_string(i / options_.columns[c].frames);
      }
    }
  }
  return "";
}

}  // namespace hocket
