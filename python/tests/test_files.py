"""Files through the cache, with the standard library alone; with numpy where it is."""

import errno
import gc
import io
import os
import tempfile
import threading
import unittest

import hotshelf

try:
    import numpy
except ImportError:
    numpy = None


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.config = os.path.join(cls.dir.name, "cache.toml")
        with open(cls.config, "w", encoding="utf-8") as config:
            config.write(f'[cache]\nmemory = "8MiB"\ndirty_age = "1h"\nruntime_dir = "{cls.dir.name}"\n')
        hotshelf.init(cls.config)

    @classmethod
    def tearDownClass(cls):
        hotshelf.shutdown()
        cls.dir.cleanup()

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def test_written_is_read(self):
        with hotshelf.open(self.path("a"), "wb") as file:
            self.assertEqual(file.write(b"hello, world"), 12)
        with hotshelf.open(self.path("a"), "rb") as file:
            self.assertEqual(file.read(5), b"hello")
            self.assertEqual(file.tell(), 5)
            self.assertEqual(file.read(), b", world")
        with hotshelf.open(self.path("a"), "r+b") as file:
            file.seek(7)
            file.write(b"there")
            file.seek(0)
            self.assertEqual(file.read(), b"hello, there")
        with hotshelf.open(self.path("a"), "ab") as file:
            self.assertEqual(file.tell(), 12)
            file.write(b"!")
            file.flush()
            file.raw.fsync()
        with open(self.path("a"), "rb") as below:
            self.assertEqual(below.read(), b"hello, there!")
        self.assertEqual(hotshelf.stat(self.path("a")).st_size, 13)
        hotshelf.rename(self.path("a"), self.path("b"))
        hotshelf.unlink(self.path("b"))
        with self.assertRaises(FileNotFoundError) as caught:
            hotshelf.open(self.path("a"))
        self.assertEqual(caught.exception.filename, self.path("a"))

    def test_text(self):
        with hotshelf.open(self.path("text"), "w", encoding="utf-8") as file:
            print("first", file=file)
            print("zweite Zeile: ä", file=file)
        with hotshelf.open(self.path("text"), encoding="utf-8") as file:
            self.assertEqual(list(file), ["first\n", "zweite Zeile: ä\n"])
        for wrong in ("", "rw", "rr", "q", "+", "rbt"):
            with self.assertRaises(ValueError):
                hotshelf.open(self.path("text"), wrong)

    def test_raw(self):
        with hotshelf.File(self.path("raw"), "w+") as file:
            self.assertIsInstance(file, io.RawIOBase)
            self.assertTrue(file.readable() and file.writable() and file.seekable() and not file.isatty())
            data = bytes(range(256)) * 400
            self.assertEqual(file.write(data), len(data))
            self.assertEqual(file.write(memoryview(data)[:100]), 100)
            self.assertEqual(file.pwrite(bytearray(b"xyz"), 10), 3)
            self.assertEqual(file.write(b""), 0)
            file.seek(0)
            self.assertEqual(file.readall(), data[:10] + b"xyz" + data[13:] + data[:100])
            self.assertEqual(file.read(1), b"")
            buffer = bytearray(7)
            self.assertEqual(file.preadinto(buffer, 8), 7)
            self.assertEqual(bytes(buffer), data[8:10] + b"xyz" + data[13:15])
            self.assertEqual(file.pread(3, 10), b"xyz")
            self.assertEqual(file.truncate(5), 5)
            self.assertEqual(file.pread(100, 0), data[:5])
            self.assertEqual(hotshelf.stat(file).st_size, 5)
            self.assertEqual(os.fstat(file.fileno()).st_ino, hotshelf.stat(file).st_ino)
            with self.assertRaises(TypeError):
                file.readinto(b"read-only")
            file.fdatasync()
        with self.assertRaises(ValueError):
            file.read(1)
        with hotshelf.File(self.path("raw")) as file, self.assertRaises(io.UnsupportedOperation):
            file.write(b"x")

    def test_pins(self):
        file = hotshelf.File(self.path("pins"), "w+")
        data = os.urandom(10000)
        file.write(data)
        with file.pin(100, 50) as page:
            self.assertEqual(bytes(page), data[100:150])
            self.assertTrue(page.readonly)
        pin = file.pin(4090, 100)
        self.assertEqual(len(pin), 6)
        self.assertEqual(len(file.pin(10000, 1)), 0)
        part = pin.view[2:4]
        pin.release()
        file.close()
        gc.collect()
        self.assertEqual(bytes(part), data[4092:4094], "a part of a view keeps the page")
        del part, pin
        gc.collect()

    def test_views(self):
        with hotshelf.File(self.path("views"), "w+") as file:
            data = os.urandom(20000)
            file.write(data)
            view = file.view(3, 30000)
            file.pwrite(b"changed", 3)
        self.assertEqual(bytes(view), data[3:] + bytes(30000 - 19997))
        with self.assertRaises(TypeError):
            view[0] = 1

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy(self):
        numbers = numpy.arange(5000, dtype="<i4")
        with hotshelf.File(self.path("numpy"), "w+") as file:
            self.assertEqual(file.write(numbers), 20000)
            again = numpy.empty(5000, dtype="<i4")
            self.assertEqual(file.preadinto(again, 0), 20000)
            page = numpy.frombuffer(file.pin(4096, 4096).view, dtype="<i4")
            whole = numpy.frombuffer(file.view(0, 20000), dtype="<i4")
        self.assertTrue((again == numbers).all() and (page == numbers[1024:2048]).all() and (whole == numbers).all())

    def test_threads(self):
        with hotshelf.File(self.path("threads"), "w+") as file:
            file.write(os.urandom(1 << 20))
            expected, wrong = file.pread(1 << 20, 0), []

            def reads():
                for offset in range(0, 1 << 20, 4096):
                    if file.pread(4096, offset) != expected[offset:offset + 4096]:
                        wrong.append(offset)

            threads = [threading.Thread(target=reads) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])

    def test_zipfiles_and_the_like_work_on_it(self):
        import zipfile

        with hotshelf.open(self.path("zip"), "w+b") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("one", b"1" * 10000)
            with zipfile.ZipFile(file) as archive:
                self.assertEqual(archive.read("one"), b"1" * 10000)

    def conflict(self, name):
        """A file that another program changed while the first page was newer in the cache."""
        path = self.path(name)
        with open(path, "wb") as file:
            file.write(b"1" * 10000)
        with hotshelf.File(path, "r+") as file:
            file.pwrite(b"2" * 4096, 0)
            with open(path, "r+b") as theirs:
                theirs.write(b"3" * 12000)
            with self.assertRaises(OSError) as caught:
                file.fsync()
            self.assertEqual(caught.exception.errno, errno.ESTALE)
            self.assertIn("hotshelf cache export", str(caught.exception))
        with self.assertRaises(OSError) as caught:
            hotshelf.open(path, "rb")
        self.assertEqual(caught.exception.errno, errno.ESTALE)
        return path

    def test_a_conflict_has_three_ways_out(self):
        path, copy = self.conflict("conflict"), self.path("copy")
        hotshelf.export(path, copy)
        with open(copy, "rb") as file:
            self.assertEqual(file.read(), b"2" * 4096 + b"3" * 5904)
        with self.assertRaises(FileExistsError):
            hotshelf.export(path, copy)
        hotshelf.discard(path)
        with hotshelf.open(path, "rb") as file:
            self.assertEqual(file.read(), b"3" * 12000)
        path = self.conflict("another")
        hotshelf.force(path)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"2" * 4096 + b"3" * 5904)
        for decide in hotshelf.discard, hotshelf.force:
            with self.assertRaises(FileNotFoundError):
                decide(path)

    def test_what_is_wrong(self):
        with self.assertRaises(OSError) as caught:
            hotshelf.init(self.path("no such file"))
        self.assertIn("configuration", str(caught.exception))
        with self.assertRaises(IsADirectoryError):
            hotshelf.open(self.dir.name, "wb")


if __name__ == "__main__":
    unittest.main()
