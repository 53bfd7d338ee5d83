// Draws one dashboard from its JSON and the answers of Prometheus, with Grafana's published components.
// State timelines are not among those: their bands are ours, coloured and worded by Grafana's display processor.
import {
  FieldType, ThemeContext, applyFieldOverrides, createTheme, dateTime, displayNameOverrideProcessor,
  getDisplayProcessor, getDisplayValueAlignmentFactors, getFieldDisplayName, getFieldDisplayValues, identityOverrideProcessor, numberOverrideProcessor,
  standardFieldConfigEditorRegistry, standardTransformers, standardTransformersRegistry, toDataFrame,
  transformDataFrame, valueMappingsOverrideProcessor,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, PortalContainer, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import React, { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';

const CELL = 38; // pixels per grid unit of height, with the gap
const GAP = 8;

const PROPERTIES = {
  color: identityOverrideProcessor, decimals: numberOverrideProcessor, displayName: displayNameOverrideProcessor,
  links: identityOverrideProcessor, mappings: valueMappingsOverrideProcessor, max: numberOverrideProcessor,
  min: numberOverrideProcessor, noValue: identityOverrideProcessor, thresholds: identityOverrideProcessor,
  unit: identityOverrideProcessor,
};
const CUSTOM = [
  'align', 'axisSoftMax', 'cellOptions', 'drawStyle', 'fillOpacity', 'lineInterpolation', 'lineStyle', 'lineWidth', 'minWidth',
  'pointSize', 'showPoints', 'spanNulls', 'thresholdsStyle', 'transform',
];

const property = (id, path, process, isCustom) => ({
  id, path, process, isCustom, name: id, editor: () => null, override: () => null, settings: {}, shouldApply: () => true,
});

standardFieldConfigEditorRegistry.setInit(() => [
  ...Object.entries(PROPERTIES).map(([id, process]) => property(id, id, process, false)),
  ...CUSTOM.map((id) => property(`custom.${id}`, id, identityOverrideProcessor, true)),
]);

standardTransformersRegistry.setInit(() => {
  const known = new Map();
  for (const each of Object.values(standardTransformers)) {
    known.set(each.id, { id: each.id, name: each.name, transformation: () => Promise.resolve(each), editor: () => null });
  }
  return [...known.values()];
});

const legendOf = (target, labels) =>
  target.legendFormat === '__auto' ? '' : target.legendFormat.replace(/{{(\w+)}}/g, (_, label) => labels[label] ?? '');

// An answer over time, or one of now, as Grafana's data source makes frames of it.
const seriesFrames = (target, answer) =>
  answer.map(({ metric, values }) =>
    toDataFrame({
      refId: target.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: values.map(([seconds]) => seconds * 1000) },
        {
          name: 'Value', type: FieldType.number, labels: metric, values: values.map(([, value]) => Number(value)),
          config: { displayNameFromDS: legendOf(target, metric) || undefined },
        },
      ],
    }));

const tableFrame = (target, answer, several) => {
  const labels = [...new Set(answer.flatMap(({ metric }) => Object.keys(metric)))];
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: answer.map(({ values }) => values[0][0] * 1000) },
      ...labels.map((label) => ({
        name: label, type: FieldType.string, values: answer.map(({ metric }) => metric[label] ?? ''),
      })),
      {
        name: several ? `Value #${target.refId}` : 'Value', type: FieldType.number,
        values: answer.map(({ values }) => Number(values[0][1])),
      },
    ],
  });
};

const prepared = (panel, frames, theme) =>
  applyFieldOverrides({
    data: frames, fieldConfig: panel.fieldConfig, replaceVariables: (text) => text, theme, timeZone: 'utc',
    fieldConfigRegistry: standardFieldConfigEditorRegistry,
  });

function Empty({ panel }) {
  return <div style={{ padding: 12, opacity: 0.7 }}>{panel.fieldConfig.defaults.noValue}</div>;
}

function Stat({ panel, frames, theme, width, height }) {
  const shown = getFieldDisplayValues({
    data: prepared(panel, frames, theme), fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions,
    replaceVariables: (text) => text, theme, timeZone: 'utc',
  });
  const each = (width - GAP * (shown.length - 1)) / shown.length;
  return (
    <div style={{ display: 'flex', gap: GAP }}>
      {shown.map(({ display }, index) => (
        <BigValue
          key={index} value={{ ...display, title: shown.length > 1 ? display.title : undefined }} width={each}
          height={height} theme={theme} colorMode={panel.options.colorMode} graphMode="none" justifyMode="auto"
          textMode={shown.length > 1 ? 'value_and_name' : 'value'} count={shown.length}
        />
      ))}
    </div>
  );
}

function Bars({ panel, frames, theme, width, height }) {
  const shown = getFieldDisplayValues({
    data: prepared(panel, frames, theme), fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions,
    replaceVariables: (text) => text, theme, timeZone: 'utc',
  });
  const alignmentFactors = getDisplayValueAlignmentFactors(shown);
  const most = Math.max(1, ...shown.map(({ display }) => display.numeric));
  return shown.map(({ display, field }, index) => (
    <BarGauge
      key={index} value={display} field={{ ...field, max: most }} width={width} height={height / shown.length - 4}
      theme={theme} orientation="horizontal" displayMode="basic" valueDisplayMode={panel.options.valueMode} showUnfilled itemSpacing={4}
      display={() => display} alignmentFactors={alignmentFactors}
    />
  ));
}

function Lines({ panel, frames, theme, width, height, range }) {
  const data = prepared(panel, frames, theme);
  return (
    <TimeSeries
      frames={data} width={width} height={height} timeRange={range} timeZone="utc" legend={panel.options.legend}
      theme={theme}
    />
  );
}

function Bands({ panel, frames, theme, width, height, range }) {
  const data = prepared(panel, frames, theme);
  const gutter = Math.min(220, width / 4);
  const axis = 20;
  const rowHeight = (height - axis) / data.length;
  const start = range.from.valueOf();
  const scale = (width - gutter) / (range.to.valueOf() - start);
  const ticks = Array.from({ length: 7 }, (_, index) => start + ((range.to.valueOf() - start) * index) / 6);
  return (
    <svg width={width} height={height} style={{ fontSize: 12, fontFamily: theme.typography.fontFamily }}>
      {data.map((frame, row) => {
        const [time, value] = frame.fields;
        const display = value.display ?? getDisplayProcessor({ field: value, theme });
        const merged = [];
        value.values.forEach((each, index) => {
          const at = time.values[index];
          const last = merged[merged.length - 1];
          if (last && last.value === each) { last.end = at; } else {
            if (last) { last.end = at; }
            merged.push({ value: each, start: at, end: at });
          }
        });
        const top = row * rowHeight + rowHeight * 0.08;
        const tall = rowHeight * 0.84;
        return (
          <g key={row}>
            <text x={gutter - 8} y={top + tall / 2 + 4} textAnchor="end" fill={theme.colors.text.primary}>
              {getFieldDisplayName(value, frame, data)}
            </text>
            {merged.map((band, index) => {
              const shown = display(band.value);
              const left = gutter + (band.start - start) * scale;
              const wide = Math.max(1, (band.end - band.start) * scale);
              return (
                <g key={index}>
                  <rect x={left} y={top} width={wide} height={tall} fill={shown.color} fillOpacity={0.9} />
                  {wide > shown.text.length * 7 + 8 && (
                    <text x={left + 5} y={top + tall / 2 + 4} fill={theme.colors.getContrastText(shown.color)}>
                      {shown.text}
                    </text>
                  )}
                </g>
              );
            })}
          </g>
        );
      })}
      {ticks.slice(0, -1).map((tick) => (
        <text key={tick} x={gutter + (tick - start) * scale} y={height - 5} fill={theme.colors.text.secondary}>
          {dateTime(tick).utc().format('HH:mm')}
        </text>
      ))}
    </svg>
  );
}

function Table({ panel, frames, theme, width, height }) {
  const [joined, setJoined] = useState(null);
  useEffect(() => {
    lastValueFrom(transformDataFrame(panel.transformations, frames)).then(setJoined);
  }, [panel, frames]);
  if (!joined) { return null; }
  const [frame] = prepared(panel, joined, theme);
  frame.fields.forEach((field) => getFieldDisplayName(field, frame)); // which keeps it, for the headings
  return <TableNG data={frame} width={width} height={height} cellHeight="sm" sortBy={panel.options.sortBy} />;
}

const KINDS = { stat: Stat, bargauge: Bars, timeseries: Lines, 'state-timeline': Bands, table: Table };

function Panel({ panel, answers, theme, range, unit }) {
  const isTable = panel.type === 'table';
  const several = panel.targets.length > 1;
  const [frames] = useState(() =>
    panel.targets.flatMap((target, index) =>
      isTable ? [tableFrame(target, answers[index], several)] : seriesFrames(target, answers[index])));
  const { x, y, w, h } = panel.gridPos;
  const Kind = KINDS[panel.type];
  const place = { position: 'absolute', left: x * unit, top: y * CELL, width: w * unit - GAP, height: h * CELL - GAP };
  const empty = panel.type !== 'stat' && frames.every((frame) => frame.length === 0);
  return (
    <div style={place}>
      <PanelChrome title={panel.title} width={place.width} height={place.height} padding="md">
        {(width, height) => empty
          ? <Empty panel={panel} />
          : <Kind panel={panel} frames={frames} theme={theme} width={width} height={height} range={range} />}
      </PanelChrome>
    </div>
  );
}

window.draw = ({ title, subtitle, panels, answers, from, to, mode, width }) => {
  const theme = createTheme({ colors: { mode } });
  const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now-1h', to: 'now' } };
  const unit = (width - 2 * GAP) / 24;
  const bottom = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const root = document.getElementById('root');
  root.style.cssText = `position:relative;width:${width}px;height:${bottom * CELL + 60}px;background:${theme.colors.background.canvas}`;
  createRoot(root).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PortalContainer />
      <div style={{ padding: '12px 8px 0', color: theme.colors.text.primary, fontFamily: theme.typography.fontFamily }}>
        <span style={{ fontSize: 18, fontWeight: 500 }}>{title}</span>
        <span style={{ marginLeft: 16, opacity: 0.75 }}>{subtitle}</span>
      </div>
      <div style={{ position: 'absolute', left: GAP, top: 48, width: width - GAP }}>
        {panels.map((panel, index) => panel.type === 'row' ? (
          <div key={panel.id} style={{ position: 'absolute', top: panel.gridPos.y * CELL + 6, fontWeight: 500, color: theme.colors.text.primary }}>
            {panel.title}
          </div>
        ) : (
          <Panel key={panel.id} panel={panel} answers={answers[index]} theme={theme} range={range} unit={unit} />
        ))}
      </div>
    </ThemeContext.Provider>,
  );
};
