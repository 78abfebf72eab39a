// The replay store for Python: `hocket.replay._store`, with tables, servers and their clients.
//
// Arrays arrive as buffers, which cost some 50 ns each. Python has checked their dtypes and shapes.
// A request that has to wait releases Python's lock.

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include "python_client.h"
#include "python_server.h"
#include "python_table.h"

using namespace hocket;

namespace {

// Makes a connection without Python's lock, so that other threads go on.
template <typename Connect>
std::shared_ptr<Client> connected(Connect connect) {
  nb::gil_scoped_release others;
  return connect();
}

void bind_service(nb::module_& module) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Gone& gone) {
      PyErr_SetString(PyExc_ConnectionError, (std::string(gone.what()) + ".").c_str());
    } catch (const Refused& refused) {
      PyErr_SetString(PyExc_ValueError, (std::string(refused.what()) + ".").c_str());
    }
  });
  nb::class_<PythonServer>(module, "Server")
      .def(nb::init<const std::vector<PythonServer::About>&, uint64_t, uint64_t, double>(),
           nb::arg("tables"), nb::arg("most_bytes"), nb::arg("most_clients"), nb::arg("spin"))
      .def("listen_tcp", &PythonServer::listen_tcp)
      .def("listen_unix", &PythonServer::listen_unix)
      .def("listen_udp", &PythonServer::listen_udp)
      .def("start", &PythonServer::start)
      .def("problem", &PythonServer::problem)
      .def("stop", &PythonServer::stop);

  nb::class_<Client>(module, "Client").def("close", &Client::close);
  module.def("connect_tcp", [](const std::string& host, uint16_t port, double seconds) {
    return connected([&] { return StreamClient::tcp(host, port, seconds); });
  });
  module.def("connect_unix", [](const std::string& path) {
    return connected([&] { return StreamClient::unix_socket(path); });
  });
  module.def("connect_udp", [](const std::string& host, uint16_t port) {
    return connected([&] { return udp_client(host, port); });
  });
  module.def("connect_shm", [](const std::string& path, uint32_t slots, double seconds) {
    return connected([&] {
      return std::make_unique<SharedClient>(StreamClient::unix_socket(path), slots, seconds);
    });
  });

  PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(Sample::buffer)}, {0, nullptr}};
  nb::class_<Sample>(module, "Sample", nb::type_slots(slots)).def("take", &Sample::take);
  nb::class_<PythonRemote>(module, "Remote")
      .def(nb::init<std::shared_ptr<Client>, uint16_t, const std::string&,
                    const std::vector<std::pair<uint64_t, uint32_t>>&>(),
           nb::arg("client"), nb::arg("table"), nb::arg("schema"), nb::arg("columns"))
      .def("insert", &PythonRemote::insert, nb::arg("rows"), nb::arg("columns"),
           nb::arg("priorities").none(), nb::arg("keys"), nb::arg("timeout"))
      .def("ask_sample", &PythonRemote::ask_sample, nb::arg("rows"), nb::arg("uniforms").none(),
           nb::arg("keys").none(), nb::arg("probability").none(), nb::arg("columns").none(),
           nb::arg("timeout"))
      .def("update", &PythonRemote::update)
      .def("add_frames", &PythonRemote::add_frames)
      .def("say", &PythonRemote::say)
      .def("may_stay", &PythonRemote::may_stay);
  const auto op = [&](const char* name, Op op) { module.attr(name) = static_cast<int>(op); };
  op("HELLO", Op::kHello);
  op("INFO", Op::kInfo);
  op("RESET", Op::kReset);
  op("SAVE", Op::kSave);
}

}  // namespace

NB_MODULE(_store, module) {
  nb::set_leak_warnings(false);  // objects of threads that never return are no leaks, see `stay`
  main_thread = nb::cast<unsigned long>(
      nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    exiting = true;
    // Lets a thread that waits for Python's lock have it once more before the end, see `stay`.
    nb::gil_scoped_release others;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }));
  nb::class_<PythonTable>(module, "Table")
      .def(nb::init<uint64_t, const std::vector<std::pair<uint64_t, uint32_t>>&, uint64_t, int, int,
                    uint32_t, uint64_t, double, double, double, uint64_t>(),
           nb::arg("capacity"), nb::arg("columns"), nb::arg("num_frames"), nb::arg("sampler"),
           nb::arg("remover"), nb::arg("max_times_sampled"), nb::arg("min_size"),
           nb::arg("samples_per_insert"), nb::arg("least"), nb::arg("most"), nb::arg("seed"))
      .def("insert", &PythonTable::insert, nb::arg("rows"), nb::arg("columns"),
           nb::arg("priorities").none(), nb::arg("keys").none(), nb::arg("timeout"))
      .def("sample", &PythonTable::sample, nb::arg("rows"), nb::arg("uniforms").none(),
           nb::arg("keys"), nb::arg("probability"), nb::arg("columns"), nb::arg("timeout"))
      .def("update", &PythonTable::update)
      .def("add_frames", &PythonTable::add_frames)
      .def("look", &PythonTable::look)
      .def("clear", &PythonTable::clear)
      .def("close", &PythonTable::close)
      .def("save", &PythonTable::save)
      .def("made", &PythonTable::made)
      .def("counts", &PythonTable::counts);
  module.def("restore", [](const std::string& path) {
    Restored restored = [&] {
      nb::gil_scoped_release others;
      return restore(path);
    }();
    auto table = std::make_unique<PythonTable>(std::move(restored.table));
    return nb::make_tuple(nb::cast(table.release(), nb::rv_policy::take_ownership), restored.about);
  });
  bind_service(module);
}
