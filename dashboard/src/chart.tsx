// A chart over time, drawn by uPlot in the page's own colours.

import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { clock } from './format';
import { useTheme } from './theme';

export type Line = { label: string; color: string; values: (number | null)[] };

const HEIGHT = 150;

/** The time that a chart shows from its only sample on, in seconds. uPlot would show a day, whose labels are all midnight. */
const SHOWN_OF_ONE_S = 60;

export function Chart(props: {
    title: string;
    unit: (value: number) => string;
    /** The label of the axis at a value, if it is not as `unit` says, and how far the values are apart that have labels. */
    axis?: (value: number, step: number) => string;
    steps?: number[];
    times: number[];
    lines: Line[];
    length: number;
}) {
    const { title, unit, times, lines } = props;
    const place = useRef<HTMLDivElement>(null);
    const plot = useRef<uPlot | undefined>(undefined);
    const theme = useTheme();
    const data = (): uPlot.AlignedData => [times, ...lines.map((line) => line.values)] as uPlot.AlignedData;

    useEffect(() => {
        const host = place.current!;
        const style = getComputedStyle(document.documentElement);
        const color = (name: string) => style.getPropertyValue(name).trim();
        const font = '11px system-ui, sans-serif';
        const axis = { stroke: color('--soft'), font, grid: { stroke: color('--line'), width: 1 }, ticks: { show: false } };
        const made = new uPlot(
            {
                width: host.clientWidth,
                height: HEIGHT,
                padding: [8, 24, 0, 0],
                cursor: { y: false, points: { size: 6 } },
                legend: { show: false },
                scales: {
                    x: { time: true, range: (plot, min, max) => [min, plot.data[0].length === 1 ? min + SHOWN_OF_ONE_S : max] },
                    y: { range: (_plot, _min, max) => [0, Math.max(max * 1.15, 1)] },
                },
                axes: [
                    { ...axis, space: 76, size: 26, values: (_plot, ticks) => ticks.map((tick) => clock(tick)) },
                    {
                        ...axis,
                        size: 54,
                        space: 32,
                        values: (_plot, ticks, _axis, _space, step) => ticks.map((tick) => (props.axis ?? unit)(tick, step)),
                        ...(props.steps ? { incrs: props.steps } : {}),
                    },
                ],
                series: [
                    {},
                    ...lines.map((line) => ({
                        label: line.label,
                        stroke: color(line.color),
                        width: 1.75,
                        points: { show: false },
                    })),
                ],
            },
            data(),
            host,
        );
        plot.current = made;
        const sized = new ResizeObserver(() => made.setSize({ width: host.clientWidth, height: HEIGHT }));
        sized.observe(host);
        return () => {
            sized.disconnect();
            made.destroy();
        };
    }, [theme]);

    useEffect(() => plot.current?.setData(data()), [props.length]);

    return (
        <figure class="chart">
            <figcaption>
                <span class="chart-title">{title}</span>
                {lines.map((line) => (
                    <span class="key" key={line.label}>
                        <i class={`swatch ${line.color.slice(2)}`} />
                        {line.label} <b>{unit(line.values.at(-1) ?? 0)}</b>
                    </span>
                ))}
            </figcaption>
            <div ref={place} class="plot" />
        </figure>
    );
}
